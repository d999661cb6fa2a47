package ipvs

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// ipLines returns the lines of a plan about devices and addresses, in the language of ip.
func ipLines(p *plan) []string {
	var l []string
	for line := range strings.Lines(p.String()) {
		if s, ok := strings.CutPrefix(strings.TrimSpace(line), "ip "); ok {
			l = append(l, s)
		}
	}

	return l
}

// commit commits a state to a backend without a kernel.
func commit(t *testing.T, b *backend, s sm.State) *plan {
	t.Helper()
	next := resolve(t, b.pl.have.table, s)
	p := b.pl.plan(sm.Diff(b.pl.have.table, next))
	b.committed(p, 7)
	return p
}

func TestDevicePlansAreGolden(t *testing.T) {
	t.Parallel()
	b := withoutKernel(t, Config{Device: "kernlb0"})
	b.pl.have.addresses.others, b.pl.have.routed = []netip.Addr{goldenAddr}, [2]bool{true, true}
	six := func(s *sm.Service) {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:10:96::10"))
	}
	more := func(s *sm.Service) {
		s.Ports = append(s.Ports, sm.ServicePort{Name: "more", Protocol: sm.TCP, Port: 81})
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.10"), goldenAddr}
	}

	state := func(edit ...func(*sm.Service)) sm.State {
		return sm.State{}.WithNode(goldenNode()).WithService(goldenService(edit...)).
			WithEndpoints(goldenService().Name, goldenEndpoints("10.244.1.1", "10.244.2.2"))
	}

	require.Equal(t, []string{
		"link add kernlb0 up group 1795224733 type dummy",
		"address add 10.96.0.10/32 dev kernlb0 metric 1795224733 scope host noprefixroute",
	}, ipLines(commit(t, b, state())))
	require.Empty(t, ipLines(commit(t, b,
		state(func(s *sm.Service) { s.Scheduler = sm.LeastConn }))))
	golden.Plan(t, "testdata/device-more-addresses.plan", commit(t, b, state(six, more)))
	golden.Plan(t, "testdata/device-fewer-addresses.plan", commit(t, b, state()))
	require.Equal(t, []string{"address del 10.96.0.10/32 dev kernlb0"},
		ipLines(commit(t, b, sm.State{}.WithNode(goldenNode()))))
	require.Empty(t, b.pl.have.index.users)
	require.Empty(t, b.pl.have.addresses.bound)
}

// After any changes, the bound addresses are the addresses of the frontends, without node ports and
// without addresses that other programs have bound. A plan from a reading changes nothing more.
func TestBoundAddressesAreThoseOfFrontends(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	node := goldenNode()
	c := randstate.Config{Services: 12, EndpointPorts: []uint16{8080, 9090}, Node: node,
		Places: []randstate.Place{
			{IPv4: netip.MustParseAddr("10.244.1.1"), IPv6: netip.MustParseAddr("fd00:10:244::1"),
				Node: node.Name},
			{IPv4: netip.MustParseAddr("10.244.2.2"), IPv6: netip.MustParseAddr("fd00:10:244::2"),
				Node: "other"},
		}}
	g := randstate.New(c, rand.New(rand.NewPCG(seed, 7)))
	b := withoutKernel(t, Config{Device: "kernlb0"})
	b.pl.have.addresses.others = []netip.Addr{randstate.VIPv4(2, 0)}
	s := g.State()
	for range 300 {
		commit(t, b, s)
		want := map[netip.Addr]bool{}
		for fe := range b.pl.have.table.Frontends() {
			if !fe.Key.NodePort() && !slices.Contains(b.pl.have.addresses.others, fe.Key.Addr) {
				want[fe.Key.Addr] = true
			}
		}

		got := map[netip.Addr]bool{}
		for _, h := range b.pl.have.addresses.bound {
			got[h.addr] = true
		}
		require.Equal(t, want, got)
		require.Empty(t, b.pl.deviceDrift(&b.pl.have))
		s = g.Change(s)
	}
}

// Every fault of the device and its addresses is drift. The next plan repairs it, and then there is
// no drift.
func TestDamageOfTheDeviceIsPlannedAway(t *testing.T) {
	t.Parallel()
	const (
		add = "address add 10.96.0.10/32 dev kernlb0 metric 1795224733 scope host noprefixroute"
		not = "address 10.96.0.10 is not bound to device kernlb0"
	)
	a := netip.MustParseAddr("10.96.0.10")
	for _, tc := range []struct {
		damage func(*observed)
		drift  []string
		plan   []string
	}{
		{func(o *observed) { o.addresses.ifindex, o.addresses.bound = 0, nil },
			[]string{"device kernlb0 is missing", not},
			[]string{"link add kernlb0 up group 1795224733 type dummy", add}},
		{func(o *observed) { o.addresses.up = false },
			[]string{"device kernlb0 is down"}, []string{"link set kernlb0 up"}},
		{func(o *observed) { o.addresses.bound = nil }, []string{not}, []string{add}},
		{func(o *observed) { o.addresses.bound = []boundAddr{{a, 9, "lo"}} },
			[]string{"address 10.96.0.10 is bound to device lo", not},
			[]string{"address del 10.96.0.10/32 dev lo", add}},
		{func(o *observed) { o.addresses.others = []netip.Addr{a} },
			[]string{"address 10.96.0.10 is bound to device kernlb0"},
			[]string{"address del 10.96.0.10/32 dev kernlb0"}},
		{func(o *observed) {
			o.devices = []string{"kernlb0", "old0"}
			o.addresses.bound = append(o.addresses.bound, boundAddr{a, 9, "old0"})
		}, []string{"device old0 is not the one that is configured",
			"address 10.96.0.10 is bound to device old0"},
			[]string{"link del old0"}},
	} {
		b := withoutKernel(t, Config{Device: "kernlb0"})
		commit(t, b, sm.State{}.WithNode(goldenNode()).WithService(goldenService()))
		o := &b.pl.have
		require.Equal(t, []boundAddr{{a, 7, "kernlb0"}}, o.addresses.bound)
		require.Empty(t, b.pl.deviceDrift(o))
		tc.damage(o)
		require.Equal(t, tc.drift, b.pl.deviceDrift(o))
		o.damage.addresses = true
		p := b.pl.plan(sm.Diff(o.table, o.table))
		require.Equal(t, tc.plan, ipLines(p))
		require.Equal(t, p.device.len(), p.Stats().Messages-4, "and two versions")
		b.committed(p, 7)
		require.Empty(t, b.pl.deviceDrift(o))
		require.Equal(t, []string{"link del kernlb0"}, ipLines(b.pl.planCleanup()))
	}
}
