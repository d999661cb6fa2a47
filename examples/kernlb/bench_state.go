package main

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// benchState makes services with one TCP port, a cluster IP and endpoints on a thousand nodes. One
// in ten has session affinity, and a load-balancer IP with source ranges and external traffic
// policy Local.
func benchState(n servicemodel.Node, services, endpoints int) servicemodel.State {
	s := servicemodel.State{}.WithNode(n)
	for i := range services {
		s = withBenchService(s, i, endpoints)
	}
	return s
}

func benchName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: fmt.Sprintf("ns-%d", i%100),
		Name: fmt.Sprintf("service-%d", i)}
}

var benchPorts = []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}

var benchRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("192.0.2.0/24")}

func withBenchService(s servicemodel.State, i, endpoints int) servicemodel.State {
	svc := &servicemodel.Service{
		Name: benchName(i),
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
			Port: 80}},
		ClusterIPs: []netip.Addr{benchAddr(10, 96, i)},
	}
	if i%10 == 9 {
		svc.SessionAffinity.ClientIP = true
		svc.ExternalTrafficPolicy = servicemodel.PolicyLocal
		svc.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: benchAddr(203, 0, i)}}
		svc.LoadBalancerSourceRanges = benchRanges
	}
	eps := make([]servicemodel.Endpoint, endpoints)
	for j := range eps {
		k := i*endpoints + j
		eps[j] = servicemodel.Endpoint{Addr: benchAddr(11, 0, k), Ports: benchPorts, Ready: true,
			Serving: true, Node: fmt.Sprintf("node-%d", k%1000)}
	}
	return s.WithService(svc).WithEndpoints(svc.Name, eps)
}

// benchFreshAddr is an endpoint address that no service had at the start.
func benchFreshAddr(i int) netip.Addr { return benchAddr(172, 0, i) }

// benchAddr is the i-th address from a.b.0.0 on.
func benchAddr(a, b byte, i int) netip.Addr {
	n := uint32(a)<<24 | uint32(b)<<16 + uint32(i) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
