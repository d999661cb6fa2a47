package ipvs

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// IPVS refuses an endpoint whose address is a broadcast address of the machine. The service is left
// out, or with KeepRefused serves with the accepted endpoints. No other service waits for it. It is
// added when the addresses have changed.
func TestABroadcastAddressHoldsBackNoOtherService(t *testing.T) {
	t.Parallel()
	for _, cfg := range []*dataplane.Config{nil, {KeepRefused: true}} {
		r := newRig(t)
		b := r.backend()
		e := dataplane.New(b, cfg)
		bad := goldenService(func(s *sm.Service) {
			s.Name.Name, s.Ports[0].NodePort = "bad", 0
			s.ClusterIPs[0] = netip.MustParseAddr("10.96.0.66")
		})
		s := rigState([]string{"10.244.1.1"}).WithService(bad).
			WithEndpoints(bad.Name, goldenEndpoints("10.244.1.2"))
		ok(e.Apply(t.Context(), s))(t)
		r.fake.SetBroadcast(netip.MustParseAddr("10.244.1.255"))
		s = s.WithEndpoints(bad.Name, goldenEndpoints("10.244.1.2", "10.244.1.255"))
		for i := range 3 {
			s = s.WithEndpoints(goldenService().Name,
				goldenEndpoints([]string{"10.244.1.3", "10.244.1.4", "10.244.1.5"}[:i+1]...))
			res := ok(e.Apply(t.Context(), s))(t)
			require.Len(t, res.Refused, 1)
			require.ErrorContains(t, res.Refused[0].Err,
				"endpoints default/bad: addr: 10.244.1.255: "+
					"is a broadcast address of this node, which IPVS does not take")
			kept := slices.Contains(r.servers(), "TCP 10.96.0.66:80 -> 10.244.1.2:8080 1")
			require.Equal(t, cfg != nil, kept, r.servers())
			require.Equal(t, cfg != nil, slices.Contains(r.servers(), "TCP 10.96.0.66:80 wrr 0s"))
		}

		r.fake.SetBroadcast(netip.Addr{})
		r.run("ip address add 192.0.2.200/32 dev lo")
		e.Resync()
		require.Empty(t, ok(e.Apply(t.Context(), s))(t).Refused)
	}
}

// A service whose scheduler the kernel lacks is left out, and no other service waits for it. It is
// added when the module is loaded. Affinity may need the scheduler mh.
func TestAMissingSchedulerHoldsBackNoOtherService(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scheduler string
		edit      func(*sm.Service)
		why       string
	}{
		{"fo", func(s *sm.Service) { s.Scheduler = sm.Failover },
			"scheduler: fo (the kernel has no such scheduler)"},
		{"mh", func(s *sm.Service) { s.Scheduler = sm.Maglev + "+port" },
			"scheduler: mh+port (the kernel has no such scheduler)"},
		{"mh", func(s *sm.Service) {
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.66")}
			s.ExternalTrafficPolicy, s.SessionAffinity.ClientIP = sm.PolicyLocal, true
		}, "it needs the scheduler mh, which the kernel does not have"},
	} {
		r := newRig(t)
		r.fake.SetLacking(c.scheduler)
		b := r.backend()
		b.kernel.modules = t.TempDir()
		e := dataplane.New(b, nil)
		bad := func(s *sm.Service) {
			s.Name.Name, s.Ports[0].NodePort = "bad", 0
			s.ClusterIPs[0] = netip.MustParseAddr("10.96.0.66")
		}

		good := goldenService(bad)
		s := rigState([]string{"10.244.1.1"}).WithService(good).
			WithEndpoints(good.Name, goldenEndpoints("10.244.1.2", "10.244.2.2"))
		require.Empty(t, ok(e.Apply(t.Context(), s))(t).Refused)
		s = s.WithService(goldenService(bad, c.edit))
		for _, endpoint := range []string{"10.244.1.3", "10.244.1.4"} {
			s = s.WithEndpoints(goldenService().Name, goldenEndpoints(endpoint))
			res := ok(e.Apply(t.Context(), s))(t)
			require.Len(t, res.Refused, 1)
			require.ErrorContains(t, res.Refused[0].Err, c.why)
		}

		r.fake.SetLacking()
		require.NoError(t, os.Mkdir(filepath.Join(b.kernel.modules, "ip_vs_"+c.scheduler), 0o700))
		e.Resync()
		require.Empty(t, ok(e.Apply(t.Context(), s))(t).Refused)
	}
}

// Without the configured scheduler nothing works, and the error says so.
func TestTheConfiguredSchedulerIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fake.SetLacking("sed")
	_, err := r.engine(Config{Scheduler: sm.ShortestDelay}).Apply(t.Context(),
		rigState([]string{"10.244.1.1"}))
	require.ErrorIs(t, err, ipvsnl.ErrNoModule)
}
