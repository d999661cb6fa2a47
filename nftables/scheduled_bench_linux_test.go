package nftables

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// benchState has services of ten endpoints. The first few have a scheduler.
func benchState(services, few int, s servicemodel.Scheduler) servicemodel.State {
	state := servicemodel.State{}.WithNode(goldenNode())
	for i := range services {
		svc := goldenService(func(svc *servicemodel.Service) {
			svc.Name.Name, svc.Ports[0].NodePort = fmt.Sprint("web-", i), 0
			svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
			if i < few {
				svc.Scheduler = s
			}
		})
		state = state.WithService(svc).WithEndpoints(svc.Name, benchEndpoints(i, 0, 10))
	}

	return state
}

// benchEndpoints are the endpoints from one number to another of the i-th service.
func benchEndpoints(i, from, to int) (l []servicemodel.Endpoint) {
	for k := from; k < to; k++ {
		l = append(l, goldenEndpoints(netip.AddrFrom4([4]byte{10, 244 + byte(i>>12),
			byte(i >> 4), byte(i<<4 + k)}).String())...)
	}

	return l
}

func benchEngine(b *testing.B) *dataplane.Engine {
	_, backend := newNS(b)
	return dataplane.New(backend, nil)
}

// A full sync of 10,000 services, some of which have a scheduler.
func BenchmarkSyncWithSchedulers(b *testing.B) {
	for _, few := range []int{0, 100} {
		for _, s := range []servicemodel.Scheduler{"mh", "sh", "rr"} {
			if few == 0 && s != "mh" {
				continue
			}
			state := benchState(10000, few, s)
			b.Run(fmt.Sprintf("%s=%d", s, few), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					e := benchEngine(b)
					b.StartTimer()
					ok(e.Apply(b.Context(), state))(b)
				}
			})
		}
	}
}

// Changes of a service beside 100 of its kind: an endpoint is replaced; one more and one less, as
// one change.
func BenchmarkChangeWithScheduler(b *testing.B) {
	for _, s := range []servicemodel.Scheduler{"", "rr", "sh", "mh"} {
		e, state := benchEngine(b), benchState(1000, 100, s)
		name := servicemodel.Name{Namespace: "default", Name: "web-7"}
		for _, change := range []struct {
			what     string
			from, to int
		}{{"replaced", 1, 11}, {"one-less", 0, 9}} {
			b.Run(fmt.Sprintf("%s/%s", s, change.what), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					eps := benchEndpoints(7, 0, 10)
					if i%2 == 0 {
						eps = benchEndpoints(7, change.from, change.to)
					}
					state = state.WithEndpoints(name, eps)
					ok(e.Apply(b.Context(), state))(b)
				}
			})
		}
	}
}
