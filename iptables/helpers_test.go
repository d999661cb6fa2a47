package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func resolve(t testing.TB, prev *sm.Table, s sm.State) *sm.Table {
	t.Helper()
	return ok(sm.Resolve(prev, s))(t)
}

func testNode() sm.Node {
	return sm.Node{
		Name: "node",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10"),
			netip.MustParseAddr("2001:db8:2::10")},
		LocalPods: sm.PodDetector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
			netip.MustParsePrefix("fd00:10:244::/48")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
}

func svcName(name string) sm.Name { return sm.Name{Namespace: "default", Name: name} }

// manyServices returns a state of n services with k endpoints each.
func manyServices(n, k int) sm.State {
	s := sm.State{}.WithNode(testNode())
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}
	for i := range n {
		name := svcName(fmt.Sprintf("service-%d", i))
		s = s.WithService(&sm.Service{
			Name:       name,
			Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{spread(i)},
		})
		s = s.WithEndpoints(name, endpoints(i, k, ports))
	}

	return s
}

func endpoints(i, k int, ports []sm.EndpointPort) []sm.Endpoint {
	var l []sm.Endpoint
	for j := range k {
		l = append(l, sm.Endpoint{Addr: endpoint(i, j),
			Node: fmt.Sprintf("node-%d", (i+j)%500), Ports: ports})
	}

	return l
}

// spread returns the cluster IP of service i. The IPs are spread as if a cluster drew them at
// random.
func spread(i int) netip.Addr {
	n := uint32(i) * 2654435761 >> 12 // 20 bits of 10.96.0.0/12
	return netip.AddrFrom4([4]byte{10, 96 | byte(n>>16&15), byte(n >> 8), byte(n)})
}

func endpoint(i, j int) netip.Addr {
	n := uint32(i*64 + j)
	return netip.AddrFrom4([4]byte{10, 200 + byte(n>>16), byte(n >> 8), byte(n)})
}

// chains calls fn for every chain of a state.
func (l *layout) chains(s *state, fn func(id chainID, rules []rule, shared bool)) {
	for _, f := range nft.Families {
		if !s.present[f] {
			continue
		}
		for _, c := range l.fixed(f, s) {
			fn(c.id, c.rules, c.shared)
		}
		for _, d := range l.treesOf(f) {
			t := s.trees[d.place]
			fn(d.table.chain(d.root), l.first(d, t, s), false)
			d.differing(t, nil, func(id chainID, rules []rule) { fn(id, rules, false) })
		}
	}

	seen := map[sm.PortName]bool{}
	for fe := range s.table.Frontends() {
		if seen[fe.Service] {
			continue
		}
		seen[fe.Service] = true
		all := s.table.FrontendsOf(fe.Service)
		for _, f := range nft.Families {
			for _, c := range l.unit(f, s.table, ofFamily(all, f), &s.rules).chains {
				fn(c.id, c.rules, false)
			}
		}
	}
}

func randomConfig() randstate.Config {
	c := randstate.Config{Services: 40, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Ranges: true, Shifted: true}
	for i := range 8 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2),
		})
	}

	c.Nodes = []sm.Node{
		{Name: "node-0", Zone: "z0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}},
		{
			Name: "node-1", Zone: "z1", ServiceCIDRs: must.Prefixes("10.96.0.0/16"),
			LocalPods: sm.PodDetector{CIDRs: must.Prefixes("10.244.0.0/16", "fd00:10:244::/56")},
		},
		{
			Name: "node-0", MasqueradeAll: true, MasqueradeMark: 1, LocalhostNodePorts: true,
			NodePortAddresses: sm.NodePortAddresses{
				CIDRs: must.Prefixes("192.0.2.0/24", "127.0.0.0/8")},
		},
		{Name: "node-0", LocalPods: sm.PodDetector{Bridge: "cni0"}},
		{Name: "node-0", OnlyFamily: sm.IPv4}, {Name: "node-1", OnlyFamily: sm.IPv6},
	}
	c.Node = c.Nodes[0]
	return c
}

// webService returns a state of one service with every kind of address.
func webService() sm.State {
	node := testNode()
	svc := &sm.Service{
		Name: svcName("web"),
		Ports: []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: 30080}},
		ClusterIPs:      must.Addrs("10.96.0.10", "fd00:10:96::a"),
		ExternalIPs:     must.Addrs("203.0.113.7"),
		LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: must.Addrs("203.0.113.8")[0]}},
	}
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}
	var eps []sm.Endpoint
	for _, a := range must.Addrs("10.244.1.1", "10.244.1.2", "10.244.2.1", "fd00:10:244:1::1") {
		eps = append(eps, sm.Endpoint{Addr: a, Node: "node",
			Ports: ports})
	}

	return sm.State{}.WithNode(node).WithService(svc).WithEndpoints(svc.Name, eps)
}

// requireSameTable compares everything that a backend holds. Health checks are left out, because
// the kernel does not hold them.
func requireSameTable(t *testing.T, want, got *sm.Table) {
	t.Helper()
	d := sm.Diff(got, want)
	d.Health = nil
	require.True(t, d.Empty(), "%s", d)
}

// richState returns services of every kind.
func richState(tb testing.TB, seed uint64) sm.State {
	tb.Helper()
	c := randomConfig()
	c.Services = 60
	s := randstate.New(c, rand.New(rand.NewPCG(seed, 7))).State()
	node := c.Nodes[1]
	node.Addresses = c.Nodes[0].Addresses
	node.LocalhostNodePorts = true
	return s.WithNode(node)
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
