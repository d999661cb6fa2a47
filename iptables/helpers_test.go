package iptables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func resolve(t testing.TB, prev *sm.Table, s sm.State) *sm.Table {
	t.Helper()
	table, err := sm.Resolve(prev, s)
	require.NoError(t, err)
	return table
}

func testNode() sm.Node {
	return sm.Node{
		Name:         "node",
		Addresses:    []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8:2::10")},
		LocalPods:    sm.PodDetector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}},
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
		l = append(l, sm.Endpoint{Addr: endpoint(i, j), Ready: true, Serving: true, Node: fmt.Sprintf("node-%d", (i+j)%500), Ports: ports})
	}
	return l
}

// spread returns the cluster IP of service i, as a cluster that draws them at random would have it.
func spread(i int) netip.Addr {
	n := uint32(i) * 2654435761 >> 12 // 20 bits of 10.96.0.0/12
	return netip.AddrFrom4([4]byte{10, 96 | byte(n>>16&15), byte(n >> 8), byte(n)})
}

func endpoint(i, j int) netip.Addr {
	n := uint32(i*64 + j)
	return netip.AddrFrom4([4]byte{10, 200 + byte(n>>16), byte(n >> 8), byte(n)})
}
