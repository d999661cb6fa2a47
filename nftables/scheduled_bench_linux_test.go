package nftables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

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

// benchEndpoints are the endpoints with the numbers from from to to-1 of the i-th service.
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

// Measures a full sync of 10,000 services, with and without schedulers.
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

// Measures changes of a service next to 100 services of its kind: an endpoint is replaced; an
// endpoint is added and another removed, in one change.
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

// Measures an update of the shares of ten endpoints, or of one weight of the default scheduler,
// among 1,000 services.
func BenchmarkFeedback(b *testing.B) {
	base := benchState(1000, 1, servicemodel.LeastConn)
	name := servicemodel.Name{Namespace: "default", Name: "web-0"}
	with := func(s servicemodel.State,
		edit func(i int, e *servicemodel.Endpoint)) servicemodel.State {
		eps := s.Endpoints(name)
		for i := range eps {
			edit(i, &eps[i])
		}
		return s.WithEndpoints(name, eps)
	}

	shares := func(moved int) servicemodel.State {
		return with(base, func(i int, e *servicemodel.Endpoint) {
			switch e.Share = []uint16{6, 6, 6, 6, 6, 6, 7, 7, 7, 7}[i]; {
			case i == 0:
				e.Share += uint16(moved)
			case i <= moved:
				e.Share--
			}
		})
	}

	random := base.WithService(func() *servicemodel.Service {
		svc := base.Service(name)
		svc.Scheduler = servicemodel.SchedulerDefault
		return svc
	}())
	weights := func(first uint16) servicemodel.State {
		return with(random, func(i int, e *servicemodel.Endpoint) {
			e.Weight = 10
			if i == 0 {
				e.Weight = first
			}
		})
	}

	for _, bb := range []struct {
		name   string
		states [2]servicemodel.State
	}{{"units=1", [2]servicemodel.State{shares(0), shares(1)}},
		{"units=4", [2]servicemodel.State{shares(0), shares(4)}},
		{"units=8", [2]servicemodel.State{shares(0), shares(8)}},
		{"weight", [2]servicemodel.State{weights(11), weights(12)}}} {
		b.Run(bb.name, func(b *testing.B) {
			e := benchEngine(b)
			ok(e.Apply(b.Context(), bb.states[1]))(b)
			var messages, i int
			var commit time.Duration
			for b.Loop() {
				r := ok(e.Apply(b.Context(), bb.states[i%2]))(b)
				messages, commit, i = messages+r.Stats.Messages, commit+r.Stats.Duration, i+1
			}

			b.ReportMetric(float64(messages)/float64(i), "messages/op")
			b.ReportMetric(float64(commit.Microseconds())/float64(i), "µs-commit/op")
		})
	}
}
