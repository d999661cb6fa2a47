package ipvs

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var goldenAddr = netip.MustParseAddr("192.0.2.10")

func goldenNode() sm.Node {
	return sm.Node{Name: "this", Addresses: []netip.Addr{goldenAddr}, LocalPods: sm.PodDetector{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
}

func goldenService(edit ...func(*sm.Service)) *sm.Service {
	s := &sm.Service{
		Name:       sm.Name{Namespace: "default", Name: "web"},
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: 30080}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

func goldenEndpoints(addrs ...string) []sm.Endpoint {
	var l []sm.Endpoint
	for i, a := range addrs {
		l = append(l, sm.Endpoint{Addr: netip.MustParseAddr(a),
			Node:  []string{"this", "other"}[i%2],
			Ports: []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}})
	}

	return l
}

// rigState returns a state with a service of both families, with an external address, a node port
// and endpoints. edit changes the service.
func rigState(endpoints []string, edit ...func(*sm.Service)) sm.State {
	svc := goldenService(append([]func(*sm.Service){func(s *sm.Service) {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:10:96::10"))
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
	}}, edit...)...)
	return sm.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name,
		goldenEndpoints(endpoints...))
}

func restrictedTo(ranges ...string) func(*sm.Service) {
	return func(s *sm.Service) {
		s.Ports[0].NodePort = 0
		s.ExternalIPs = nil
		s.LoadBalancerIPs = []sm.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.20")}}
		for _, p := range ranges {
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges,
				netip.MustParsePrefix(p))
		}
	}
}

// atPort returns the endpoints with a different port.
func atPort(port uint16, l []sm.Endpoint) []sm.Endpoint {
	l = slices.Clone(l)
	for i := range l {
		l[i].Ports = slices.Clone(l[i].Ports)
		l[i].Ports[0].Port = port
	}

	return l
}

// withoutKernel returns a backend that assumes an empty kernel.
func withoutKernel(t *testing.T, cfg ...Config) *backend {
	t.Helper()
	c := ok(append(cfg, Config{})[0].withDefaults())(t)
	b := newBackend(c)
	b.pl.assume([]netip.Addr{goldenAddr})
	return b
}

// Edits of goldenService.
func local(s *sm.Service) {
	s.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
	s.ExternalTrafficPolicy = sm.PolicyLocal
}

func sticky(s *sm.Service) { s.SessionAffinity.ClientIP = true }

func least(s *sm.Service) { s.Scheduler = sm.LeastConn }

func direct(s *sm.Service) {
	s.Ports[0].NodePort = 0
	s.Forwarding = sm.ForwardDirect
}

// goldenStory is a sequence of states. The plan from each state to the next is golden.
func goldenStory() []struct {
	name  string
	state sm.State
} {
	name := goldenService().Name
	base := sm.State{}.WithNode(goldenNode()).WithService(goldenService()).
		WithEndpoints(name, goldenEndpoints("10.244.1.1", "10.244.2.2"))
	two := goldenEndpoints("10.244.1.3", "10.244.2.4")
	marked := goldenNode()
	marked.MasqueradeMark = 0x40
	with := func(edit ...func(*sm.Service)) sm.State {
		return base.WithService(goldenService(edit...)).WithEndpoints(name, two)
	}
	ranges := func(ports ...uint16) sm.State {
		return base.WithService(goldenService(local, sticky, func(s *sm.Service) {
			s.Ports = nil
			for i := 0; i < len(ports); i += 2 {
				s.Ports = append(s.Ports, sm.ServicePort{Name: fmt.Sprint(ports[i]),
					Protocol: sm.UDP, Port: ports[i], EndPort: ports[i+1]})
			}
		})).WithEndpoints(name, []sm.Endpoint{{Addr: netip.MustParseAddr("10.244.1.1"),
			Node: "this", Ports: []sm.EndpointPort{{Name: "1000", Protocol: sm.UDP},
				{Name: "1200", Protocol: sm.UDP, Port: 53}}},
			{Addr: netip.MustParseAddr("10.244.2.2"),
				Ports: []sm.EndpointPort{{Name: "1000", Protocol: sm.UDP}}}})
	}

	return []struct {
		name  string
		state sm.State
	}{
		{"01-first", base},
		{"02-one-endpoint-replaced",
			base.WithEndpoints(name, goldenEndpoints("10.244.1.1", "10.244.1.3"))},
		{"03-one-comes-back",
			base.WithEndpoints(name, goldenEndpoints("10.244.1.1", "10.244.2.2", "10.244.1.3"))},
		{"04-local", with(local)},
		{"05-sources", with(restrictedTo("198.51.100.0/24"))},
		{"06-affinity", with(sticky)},
		{"07-local-affinity", with(local, sticky)},
		{"08-another-scheduler", with(least)},
		{"09-direct-routing", with(direct).WithEndpoints(name, atPort(80, two))},
		{"10-other-settings", base.WithNode(marked).WithService(goldenService(local)).WithEndpoints(
			name, two)},
		{"11-other-settings-and-gone", base.WithoutService(name)},
		{"12-restricted", with(restrictedTo("198.51.100.0/24"))},
		{"13-other-settings-and-less-restricted", with(restrictedTo()).WithNode(marked)},
		{"14-no-endpoints", base.WithNode(marked).WithEndpoints(name, nil)},
		{"15-gone", base.WithNode(marked).WithoutService(name)},
		{"16-range", ranges(1000, 1999)},
		{"17-range-in-it", ranges(1000, 1999, 1200, 1203)},
		{"18-outer-range-gone", ranges(1200, 1203)},
		{"19-given-source", with(givenSource)},
		{"20-given-source-gone", base.WithoutService(name)},
	}
}

func TestPlansAreGolden(t *testing.T) {
	t.Parallel()
	b := withoutKernel(t)
	var table *sm.Table
	for _, step := range goldenStory() {
		next := resolve(t, table, step.state)
		c := sm.Diff(table, next)
		p := b.pl.plan(c)
		golden.Plan(t, filepath.Join("testdata", step.name+".plan"), p)
		again := b.pl.plan(c)
		requireCounted(t, p, again)
		require.Equal(t, p.String(), again.String())
		b.committed(p, 0)
		table = next
	}

	require.Empty(t, b.pl.have.servers)
	require.Empty(t, b.pl.have.companion.records)
	require.Empty(t, b.pl.have.index.marks)
}

// requireCounted requires that the same plan gives the same bytes, and that everything in it is
// counted.
func requireCounted(t *testing.T, p, again *plan) {
	t.Helper()
	messages := len(p.up) + len(p.down) + p.device.len()
	for s := range p.stages {
		require.NoError(t, p.batch(s).Err())
		require.Equal(t, p.batch(s).Bytes(), again.batch(s).Bytes())
		messages += p.batch(s).Len()
	}

	require.Equal(t, messages, p.Stats().Messages)
}

// The bits that identify a client come from the service, or else from the configuration.
func TestAffinityMasksAreInThePlan(t *testing.T) {
	t.Parallel()
	const (
		four = "-A -t 10.96.0.10:80 -s wrr -p 10800"
		six  = "-A -t [fd00:10:96::10]:80 -s wrr -p 10800"
	)
	masks := Config{AffinityMask4: 24, AffinityMask6: 64}
	for _, tc := range []struct {
		cfg  Config
		own  uint8 // bits of IPv4 that the service sets
		want [2]string
	}{
		{Config{}, 0, [2]string{"", ""}},
		{Config{AffinityMask4: 32, AffinityMask6: 128}, 0, [2]string{"", ""}},
		{masks, 0, [2]string{" -M 255.255.255.0", " -M 64"}},
		{masks, 20, [2]string{" -M 255.255.240.0", " -M 64"}},
	} {
		s := rigState(nil, sticky, func(s *sm.Service) { s.SessionAffinity.Bits4 = tc.own })
		p := withoutKernel(t, tc.cfg).pl.plan(sm.Diff(nil, resolve(t, nil, s))).String()
		require.Contains(t, p, four+tc.want[0]+"\n")
		require.Contains(t, p, six+tc.want[1]+"\n")
	}

	whole := rigState(nil, sticky, func(s *sm.Service) { s.SessionAffinity.WholeService = true })
	require.ErrorContains(t, Check(sm.Diff(nil, resolve(t, nil, whole))),
		backends.FieldAffinityService)
}

// A mark belongs to one frontend at a time, and is assigned again when it is free. Marks of other
// programs are left alone.
func TestMarksAreGivenOnce(t *testing.T) {
	t.Parallel()
	b := withoutKernel(t)
	first := b.pl.cfg.Mark | splitMark
	b.pl.have.index.marks[first+2] = true // another program's
	service := func(i int) *sm.Service {
		return goldenService(func(s *sm.Service) {
			s.Name.Name += string(rune('a' + i))
			s.Ports[0].NodePort = 0
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)})}
			s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)})}
			s.ExternalTrafficPolicy = sm.PolicyLocal
		})
	}

	var table *sm.Table
	endpoints := goldenEndpoints("10.244.1.1", "10.244.2.2")
	commit := func(services ...int) map[uint32]string {
		s := sm.State{}.WithNode(goldenNode())
		for _, i := range services {
			s = s.WithService(service(i)).WithEndpoints(service(i).Name, endpoints)
		}
		next := resolve(t, table, s)
		c := sm.Diff(table, next)
		p := b.pl.plan(c)
		b.committed(p, 0)
		table = next
		given := map[uint32]string{}
		for _, r := range b.pl.have.companion.records {
			if r.mark != 0 {
				require.NotContains(t, given, r.mark)
				require.True(t, b.pl.have.index.marks[r.mark])
				given[r.mark] = r.fe.Service.Name.Name
			}
		}

		require.Len(t, b.pl.have.index.marks, len(given)+1)
		return given
	}

	require.Equal(t, map[uint32]string{first + 1: "weba", first + 3: "webb"}, commit(0, 1))
	require.Equal(t, map[uint32]string{first + 3: "webb"}, commit(1))
	require.Equal(t, map[uint32]string{first + 3: "webb", first + 1: "webc"}, commit(1, 2))
	endpoints = goldenEndpoints("10.244.1.1", "10.244.2.3")
	require.Equal(t, map[uint32]string{first + 3: "webb", first + 1: "webc"},
		commit(1, 2), "who has a mark keeps it")
}

func TestWhatCannotBeExpressedIsRefused(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]struct {
		field string
		edit  func(*sm.Service, *sm.Node)
	}{
		"the scheduler random": {"scheduler", func(s *sm.Service, _ *sm.Node) {
			s.Scheduler = sm.Random
		}},
		"direct routing to another port": {"forwarding", func(s *sm.Service, _ *sm.Node) {
			s.Ports[0].NodePort, s.Forwarding = 0, sm.ForwardDirect
		}},
		"a tunnel to another port": {"forwarding", func(s *sm.Service, _ *sm.Node) {
			s.Ports[0].NodePort, s.Forwarding = 0, sm.ForwardTunnel
		}},
		"direct routing on a node port": {"forwarding", func(s *sm.Service, _ *sm.Node) {
			s.Ports[0].Port, s.Forwarding = 8080, sm.ForwardDirect
		}},
		"node ports on localhost": {"localhostNodePorts", func(_ *sm.Service, n *sm.Node) {
			n.LocalhostNodePorts = true
		}},
		"neighbours": {"masqueradeNeighbours", func(_ *sm.Service, n *sm.Node) {
			n.MasqueradeNeighbours = true
		}},
	} {
		n, svc := goldenNode(), goldenService()
		refused.edit(svc, &n)
		table := resolve(t, nil, sm.State{}.WithNode(n).WithService(
			svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1")))
		var unsupported *backends.UnsupportedError
		require.ErrorAs(t, withoutKernel(t).Check(sm.Diff(nil, table)), &unsupported, name)
		require.Equal(t, refused.field, unsupported.Field, name)
		if unsupported.Object != "node" {
			require.Equal(t, svc.Name, unsupported.Service, name)
		}
	}
}

func resolve(tb testing.TB, prev *sm.Table, s sm.State) *sm.Table {
	tb.Helper()
	return ok(sm.Resolve(prev, s))(tb)
}

// givenSource sets the source of masqueraded connections.
func givenSource(s *sm.Service) {
	s.MasqueradeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.99"), netip.IPv6Unspecified()}
}
