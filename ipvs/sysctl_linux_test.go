package ipvs

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

const sysctlARP = "net/ipv4/conf/all/arp_ignore"

// reliances are what may be done before a cleanup, and what the sysctls are after it.
var reliances = []struct {
	name    string
	between func(*rig)
	forward string // afterwards
	arp     string
	since   string
}{
	{"nobody", func(*rig) {}, "0", "0", ""},
	{"somebody forwards", func(r *rig) {
		r.run("nft add table inet firewall")
		r.run("nft add chain inet firewall forward { type filter hook forward priority 0 ; }")
	}, "1", "0", "others have rules about forwarded packets"},
	{"rules about other packets", func(r *rig) {
		r.run("nft add table inet firewall")
		r.run("nft add chain inet firewall forward")
		r.run("nft add chain inet firewall input { type filter hook input priority 0 ; }")
		r.run("nft add table bridge switch")
		r.run("nft add chain bridge switch forward { type filter hook forward priority 0 ; }")
	}, "0", "0", ""},
	{"iptables", func(r *rig) { r.run("iptables-legacy -t filter -L") }, "1", "0",
		"others have rules about forwarded packets"},
	{"set again by somebody", func(r *rig) { r.setSysctl(sysctlARP, "2") }, "0", "2",
		"somebody else has set it since"},
	{"restored by somebody", func(r *rig) { r.setSysctl(sysctlARP, "0") }, "0", "0", ""},
	{"another instance", func(r *rig) {
		_, err := r.engine(Config{Table: "other"}).Apply(r.t.Context(),
			servicemodel.State{}.WithNode(goldenNode()))
		require.NoError(r.t, err)
	}, "1", "1", "another instance needs it"},
}

// A cleanup restores what sysctls were, unless there is a sign that somebody else relies on what
// they are; then it says so.
func TestSysctlsOthersRelyOnAreLeft(t *testing.T) {
	t.Parallel()
	for _, tc := range reliances {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var log bytes.Buffer
			e := r.engine(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			r.apply(e, rigState([]string{"10.244.1.1"}))
			tc.between(r)
			_, err := e.Cleanup(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.forward, r.sysctl(sysctlForward))
			require.Equal(t, tc.arp, r.sysctl(sysctlARP))
			require.Contains(t, log.String(), tc.since)
			require.Equal(t, tc.since != "", log.Len() > 0)
			// whoever is the last knows what they were before the first
			if tc.name == "another instance" {
				_, err = r.engine(Config{Table: "other"}).Cleanup(t.Context())
				require.NoError(t, err)
				require.Equal(t, "0", r.sysctl(sysctlForward))
				require.Equal(t, "0", r.sysctl(sysctlARP))
			}
		})
	}
}

// Sysctls of IPVS are left while others have virtual servers.
func TestSysctlsOfIPVSAreLeftToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	foreign := false
	why, err := b.kernel.reliedOn(t.Context(), sysctlIPVS+"conntrack", nil, foreign)
	require.NoError(t, err)
	require.Empty(t, why)
	foreign = true
	why, err = b.kernel.reliedOn(t.Context(), sysctlIPVS+"conntrack", nil, foreign)
	require.NoError(t, err)
	require.Equal(t, "there are virtual servers of others", why)
	why, err = b.kernel.reliedOn(t.Context(), sysctlARP, nil, foreign)
	require.NoError(t, err)
	require.Empty(t, why)
}

// A sysctl that is no longer wanted is restored, and forgotten.
func TestSysctlsAreRestoredWhenTheyAreNotWanted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	r.apply(r.engine(), s)
	for _, damaged := range []bool{false, true} {
		b := r.backend()
		delete(b.pl.tunables, sysctlARP)
		if damaged {
			r.run("nft flush chain ip kernlb-ipvs admit")
		}
		res, err := dataplane.New(b, nil).Apply(t.Context(), s)
		require.NoError(t, err)
		require.Contains(t, res.Drift, "sysctl "+sysctlARP+" is set, and need not be")
		require.Equal(t, "0", r.sysctl(sysctlARP))
		c, drift, err := b.kernel.readCompanion(t.Context())
		require.NoError(t, err)
		require.Empty(t, drift)
		require.Equal(t, map[string]string{sysctlForward: "0"}, c.tunables)
		r.apply(r.engine(), s)
		require.Equal(t, "1", r.sysctl(sysctlARP))
	}
}

// Every name that Kubernetes allows works, with all that a record can say.
func TestLongNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", 63)
	svc := goldenService(func(s *servicemodel.Service) {
		s.Name = servicemodel.Name{Namespace: long, Name: long}
		s.Ports[0].Name = long
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true,
			Timeout: servicemodel.MaxAffinityTimeout}
		s.ExternalTrafficPolicy = servicemodel.PolicyLocal
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.20")}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.Ports[0].NodePort = 0
	})
	eps := goldenEndpoints("10.244.1.1", "10.244.2.2")
	for i := range eps {
		eps[i].Ports[0].Name = long
	}
	s := servicemodel.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name, eps)
	r.apply(r.engine(), s)
	o, err := r.backend().Observe(t.Context(), nil)
	require.NoError(t, err)
	for fe := range o.Table.Frontends() {
		require.Len(t, fe.Service.String(), 191)
	}
}

// A virtual server of somebody else is reported, with the service in whose way it is; one that
// appears after that is a conflict.
func TestForeignVirtualServersAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	s := rigState([]string{"10.244.1.1"})
	foreign, err := r.fake.Dial(t.Context(), nil)
	require.NoError(t, err)
	defer foreign.Close()
	theirs := ipvsnl.Service{ServiceKey: ipvsnl.AddressService(ipvsnl.TCP,
		netip.MustParseAddrPort("203.0.113.10:80")), Scheduler: "rr"}
	table, err := servicemodel.Resolve(nil, s)
	require.NoError(t, err)
	o, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	c := servicemodel.Diff(o.Table, table)
	require.NoError(t, b.Check(c))
	var batch ipvsnl.Batch
	batch.NewService(theirs)
	require.NoError(t, foreign.Submit(t.Context(), &batch))
	_, err = b.Commit(t.Context(), c)
	require.ErrorIs(t, err, dataplane.ErrConflict)

	o, err = b.Observe(t.Context(), nil)
	require.NoError(t, err)
	var collision *dataplane.CollisionError
	require.ErrorAs(t, b.Check(servicemodel.Diff(o.Table, table)), &collision)
	require.Equal(t,
		dataplane.CollisionError{Backend: Name, Service: goldenService().Name,
			Object: "virtual server TCP 203.0.113.10:80"}, *collision)
	without := rigState([]string{"10.244.1.1"},
		func(s *servicemodel.Service) { s.ExternalIPs = nil })
	r.apply(r.engine(), without)
	require.Contains(t, r.servers(), "TCP 203.0.113.10:80 rr 0s")
}

// Who set a sysctl is told by its value, also where the configuration does not ask for it any more.
func TestWhatWasSetByOthers(t *testing.T) {
	t.Parallel()
	wanted := map[string]string{timeoutTCP: "900"}
	for _, c := range []struct {
		name, now string
		by        bool
	}{
		{sysctlARP, "1", false}, {sysctlARP, "2", true},
		{timeoutTCP, "900", false}, {timeoutTCP, "800", true}, {timeoutUDP, "800", false},
	} {
		require.Equal(t, c.by, setByOthers(c.name, c.now, wanted), "%s %s", c.name, c.now)
	}
}

// A sysctl whose file is of no use any more, since its module was loaded again, is opened again.
func TestSysctlFilesAreOpenedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	s := b.kernel.sysctls
	for range 2 {
		v, err := s.read(b.kernel.ns, sysctlARP)
		require.NoError(t, err)
		require.Equal(t, "0", v)
		require.NoError(t, s[sysctlARP].Close())
	}
}

// A tunable that the kernel refuses is an error, whether it is set or restored.
func TestTunablesThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	r.setSysctl(sysctlARP, rigSysctls[sysctlARP])
	nonsense := []tunable{{sysctlARP, "nonsense"}}
	p := &plan{}
	p.network.set = nonsense
	err := b.kernel.prepare(t.Context(), p)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, sysctlARP)
	require.ErrorIs(t, b.restoring(nonsense)(t.Context()), syscall.EINVAL)
	none := []tunable{{"net/ipv4/there_is_none", "1"}, {sysctlARP, "2"}}
	require.NoError(t, b.kernel.setTunables(t.Context(), none), "what is not there need not be set")
	require.Equal(t, "2", r.sysctl(sysctlARP))
}
