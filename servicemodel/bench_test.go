package servicemodel_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kernlb/kernlb/servicemodel"
)

// addr4 returns the i-th address of a range of 10.0.0.0/8 that starts at 10.base.0.0.
func addr4(base byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, base + byte(i>>16), byte(i >> 8), byte(i)})
}

func benchName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "default", Name: fmt.Sprintf("service-%d", i)}
}

var benchPorts = []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}

func benchEndpoints(i, n int) []servicemodel.Endpoint {
	eps := make([]servicemodel.Endpoint, n)
	for j := range eps {
		eps[j] = servicemodel.Endpoint{Addr: addr4(64, i*n+j), Ports: benchPorts}
	}
	return eps
}

// benchState returns n services with m endpoints each, every tenth service with a node port.
func benchState(n, m int) servicemodel.State {
	var s servicemodel.State
	s = s.WithNode(servicemodel.Node{Name: "node", LocalPods: servicemodel.PodDetector{
		CIDRs: prefixes("10.64.0.0/10")}})
	for i := range n {
		svc := &servicemodel.Service{
			Name:       benchName(i),
			ClusterIPs: []netip.Addr{addr4(0, i+1)},
			Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 80}},
		}
		if i%10 == 0 && i < 20000 {
			svc.Ports[0].NodePort = uint16(30000 + i/10)
		}
		s = s.WithService(svc).WithEndpoints(svc.Name, benchEndpoints(i, m))
	}

	return s
}

func mustResolve(b testing.TB, prev *servicemodel.Table, s servicemodel.State) *servicemodel.Table {
	b.Helper()
	t, err := servicemodel.Resolve(prev, s)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

func BenchmarkFullResolve(b *testing.B) {
	s := benchState(10000, 10)
	b.ReportAllocs()
	for b.Loop() {
		mustResolve(b, nil, s)
	}
}

func BenchmarkFullResolveAndDiff(b *testing.B) {
	s := benchState(10000, 10)
	b.ReportAllocs()
	for b.Loop() {
		servicemodel.Diff(nil, mustResolve(b, nil, s))
	}
}

func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := benchState(n, 10)
			t := mustResolve(b, nil, s)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				k := i * 7919 % n
				eps := benchEndpoints(k, 10)
				eps[i%10].Addr = addr4(200, i%(1<<20))
				s = s.WithEndpoints(benchName(k), eps)
				next := mustResolve(b, t, s)
				if c := servicemodel.Diff(t, next); len(c.Pools) != 1 {
					b.Fatal(c)
				}
				t = next
			}
		})
	}
}

func BenchmarkOneEndpointOfManyInItsService(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			s := benchState(2, n)
			t := mustResolve(b, nil, s)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				eps := s.Endpoints(benchName(1))
				eps[i%n].Addr = addr4(200, i%(1<<20))
				s = s.WithEndpoints(benchName(1), eps)
				next := mustResolve(b, t, s)
				if c := servicemodel.Diff(t, next); len(c.Pools) != 1 ||
					c.Counts() != (servicemodel.Counts{Changed: 1}) {
					b.Fatal(c)
				}

				t = next
			}
		})
	}
}

func BenchmarkNothingChanged(b *testing.B) {
	for _, n := range []int{10000, 50000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := benchState(n, 10)
			t := mustResolve(b, nil, s)
			for b.Loop() {
				next := mustResolve(b, t, s.WithEndpoints(benchName(5), benchEndpoints(5, 10)))
				if !servicemodel.Diff(t, next).Empty() {
					b.Fatal("differs")
				}
			}
		})
	}
}

func BenchmarkArrangeAdopted(b *testing.B) {
	s := benchState(10000, 10)
	t := mustResolve(b, nil, s)
	c := servicemodel.Contents{Rules: t.Rules()}
	c.Frontends, c.Pools = slices.Collect(t.Frontends()), slices.Collect(t.Pools())
	c.ClusterIPs, c.Hairpins = slices.Collect(t.ClusterIPs()), slices.Collect(t.Hairpins())
	for b.Loop() {
		adopted, err := servicemodel.NewTable(c)
		if err != nil {
			b.Fatal(err)
		}
		if !servicemodel.Diff(adopted, t.Arrange(adopted)).Empty() {
			b.Fatal("differs")
		}
	}
}
