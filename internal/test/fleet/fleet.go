// Package fleet builds states of many services, for benchmarks and counts.
package fleet

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// Fleet is a number of services with the same number of endpoints each. Their names and addresses
// are numbered from First.
type Fleet struct {
	First, Services, Endpoints int
}

// Name is the name of the i-th service.
func (f Fleet) Name(i int) servicemodel.Name {
	i += f.First
	return servicemodel.Name{Namespace: fmt.Sprintf("ns-%d", i%100),
		Name: fmt.Sprintf("service-%d", i)}
}

// Add adds n services to a state, numbered from first. Each has one TCP port, a cluster IP and
// endpoints on a thousand nodes. One in ten has session affinity, and a load-balancer IP with
// source ranges and external traffic policy Local.
func (f Fleet) Add(s servicemodel.State, first, n int) servicemodel.State {
	for i := f.First + first; i < f.First+first+n; i++ {
		svc := &servicemodel.Service{
			Name: f.Name(i - f.First),
			Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 80}},
			ClusterIPs: []netip.Addr{Addr(10, 96, i)},
		}
		if i%10 == 9 {
			svc.SessionAffinity.ClientIP = true
			svc.ExternalTrafficPolicy = servicemodel.PolicyLocal
			svc.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: Addr(203, 0, i)}}
			svc.LoadBalancerSourceRanges = ranges
		}

		eps := make([]servicemodel.Endpoint, f.Endpoints)
		for j := range eps {
			k := i*f.Endpoints + j
			eps[j] = servicemodel.Endpoint{Addr: Addr(11, 0, k), Ports: ports,
				Node: fmt.Sprintf("node-%d", k%1000)}
		}

		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	return s
}

// Replaced returns the state in which the i-th change has replaced an endpoint.
func (f Fleet) Replaced(s servicemodel.State, i int) servicemodel.State {
	n := f.Name(i * 7 % f.Services)
	eps := s.Endpoints(n)
	eps[i%len(eps)].Addr = FreshAddr(i)
	return s.WithEndpoints(n, eps)
}

// Scaled returns the state in which a service has an additional endpoint, if i is even, or has lost
// this endpoint again.
func (f Fleet) Scaled(s servicemodel.State, i int) servicemodel.State {
	n := f.Name(i / 2 * 7 % f.Services)
	eps := s.Endpoints(n)
	if i%2 == 1 {
		return s.WithEndpoints(n, eps[:len(eps)-1])
	}
	more := eps[0]
	more.Addr = FreshAddr(1<<16 + i)
	return s.WithEndpoints(n, append(eps, more))
}

// OneMore returns the state with an additional service, if i is even, or without this service.
func (f Fleet) OneMore(s servicemodel.State, i int) servicemodel.State {
	another := f.Services + i/2*10 // none of them has session affinity if the first has none
	if i%2 == 1 {
		return s.WithoutService(f.Name(another))
	}
	return f.Add(s, another, 1)
}

var ports = []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}

var ranges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("192.0.2.0/24")}

// FreshAddr is an endpoint address that no service had at the start.
func FreshAddr(i int) netip.Addr { return Addr(172, 0, i) }

// Addr is the i-th address from a.b.0.0 on.
func Addr(a, b byte, i int) netip.Addr {
	n := uint32(a)<<24 | uint32(b)<<16 + uint32(i) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
