package nftables

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

var stickyName = servicemodel.Name{Namespace: "default", Name: "sticky"}

// affinityState is a service with affinity and n endpoints. The endpoint with the number replaced
// has a different address.
func affinityState(n, replaced int) servicemodel.State {
	svc := &servicemodel.Service{Name: stickyName, Ports: []servicemodel.ServicePort{
		{Protocol: servicemodel.TCP, Port: 80}},
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		SessionAffinity: servicemodel.SessionAffinity{ClientIP: true, Timeout: time.Hour}}
	var eps []servicemodel.Endpoint
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)})
		if i == replaced {
			a = netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})
		}
		eps = append(eps, servicemodel.Endpoint{Addr: a,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return servicemodel.State{}.WithService(svc).WithEndpoints(stickyName, eps)
}

// affinityKinds are the kinds of remembered clients.
var affinityKinds = map[string]servicemodel.SessionAffinity{
	"clients":       {ClientIP: true, Timeout: time.Hour},
	"prefixes":      {ClientIP: true, Timeout: time.Hour, Bits4: 24},
	"whole service": {ClientIP: true, Timeout: time.Hour, WholeService: true},
}

// affinityStateOf is like affinityState, with another kind of affinity.
func affinityStateOf(kind string, n, replaced int) servicemodel.State {
	s := affinityState(n, replaced)
	svc := *s.Service(stickyName)
	svc.SessionAffinity = affinityKinds[kind]
	return s.WithService(&svc)
}

// rememberClients writes n clients into the affinity maps, with the endpoints in turn, as if the
// clients had connected.
func rememberClients(tb testing.TB, b *backend, n, endpoints int) {
	tb.Helper()
	rememberClientsFor(tb, b, n, endpoints, func(int) time.Duration { return time.Hour })
}

// rememberClientsFor is like rememberClients, with a separate timeout for each client.
func rememberClientsFor(tb testing.TB, b *backend, n, endpoints int,
	timeout func(i int) time.Duration) {
	tb.Helper()
	p := &plan.Plan{Table: b.pl.Table, Have: b.pl.Version,
		Next: b.pl.Version.Next(false, nil, nil, false, false)}
	shape := &b.pl.Tables[0].Shape
	fp := &plan.TablePlan{Family: nft.IPv4, Have: b.pl.Tables[0],
		Sets: form.SetsOf(nft.IPv4, shape),
		Ops:  map[string]*plan.SetOps{}}
	p.Tables = []*plan.TablePlan{fp}
	group := shape.Affinity[0].Group()
	for i := range n {
		ep := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i%endpoints + 1)}), 8080)
		e := nft.Elem{Key: nft.AppendAddr(nil, netip.AddrFrom4([4]byte{100, byte(i >> 16),
			byte(i >> 8), byte(i)})), Timeout: timeout(i)}
		if group == form.GroupServices {
			e.Key = nft.AppendAddr(e.Key, form.ServiceID(stickyName, nft.IPv4))
			e.Data = nft.AppendAddr(nil, ep.Addr())
		} else {
			e.Key = nft.AppendFrontend(e.Key, tcpKey("10.96.0.1:80"))
			e.Data = nft.AppendEndpoint(nil, ep)
		}

		// not the map that the client's hash selects, because none of these clients connects
		fp.OpsOf(form.AffinityMap(group, i%form.AffinityMaps)).Add.Add(e)
	}

	ok(b.send(tb.Context(), p))(tb)
	b.pl.Version = p.Next
}

// Measures the removal of an endpoint that was given to a tenth of 60,000 remembered clients.
func BenchmarkEndpointLeavesClients(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		_, backend := newNS(b)
		e := dataplane.New(backend, nil)
		ok(e.Apply(b.Context(), affinityState(10, -1)))(b)
		rememberClients(b, backend, 60000, 10)
		b.StartTimer()
		ok(e.Apply(b.Context(), affinityState(10, 3)))(b)
	}
}

// Measures the delay of commits while the clients of a removed endpoint are forgotten, among
// 262,144 clients. Their last connection was an hour or ten seconds ago.
func BenchmarkCommitsWhileClientsAreForgotten(b *testing.B) {
	for kind := range affinityKinds {
		for name, timeout := range map[string]func(int) time.Duration{
			"none expire": func(int) time.Duration { return time.Hour },
			"all ages of 20 s": func(i int) time.Duration {
				return 8*time.Second + time.Duration(i%20000)*time.Millisecond
			},
		} {
			b.Run(kind+", "+name, func(b *testing.B) {
				for b.Loop() {
					commitsBesideASweep(b, kind, timeout)
				}
			})
		}
	}
}

func commitsBesideASweep(b *testing.B, kind string, timeout func(int) time.Duration) {
	_, backend := newNS(b)
	e := dataplane.New(backend, nil)
	ok(e.Apply(b.Context(), affinityStateOf(kind, 10, -1)))(b)
	filling := time.Now()
	rememberClientsFor(b, backend, form.AffinityMaps*form.AffinitySize, 10, timeout)
	time.Sleep(time.Until(filling.Add(8 * time.Second)))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- e.Run(ctx, nil) }()

	var waits []time.Duration
	set := func(s servicemodel.State) {
		start := time.Now()
		if err := e.Wait(ctx, e.Set(s)); err != nil {
			b.Fatal(err)
		}
		waits = append(waits, time.Since(start))
	}

	start := time.Now()
	set(affinityStateOf(kind, 10, 3))
	for i := 0; !e.Status().Settle.IsZero(); i++ {
		set(affinityStateOf(kind, 10, 3).WithService(&servicemodel.Service{
			Name:       servicemodel.Name{Namespace: "default", Name: "other"},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}))
		time.Sleep(time.Millisecond)
	}

	b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-until-settled")
	cancel()
	<-ended

	slices.Sort(waits)
	b.ReportMetric(float64(len(waits)), "commits")
	for what, at := range map[string]int{"p50": len(waits) / 2, "p99": len(waits) * 99 / 100,
		"worst": len(waits) - 1} {
		b.ReportMetric(float64(waits[at].Microseconds())/1000, "ms-"+what)
	}
}
