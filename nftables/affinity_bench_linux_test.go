package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// affinityState is a service with affinity and n endpoints. The endpoint with the number replaced
// is another one.
func affinityState(n, replaced int) servicemodel.State {
	name := servicemodel.Name{Namespace: "default", Name: "sticky"}
	svc := &servicemodel.Service{Name: name, Ports: []servicemodel.ServicePort{
		{Protocol: servicemodel.TCP, Port: 80}},
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		SessionAffinity: servicemodel.SessionAffinity{ClientIP: true, Timeout: time.Hour}}
	var eps []servicemodel.Endpoint
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)})
		if i == replaced {
			a = netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})
		}
		eps = append(eps, servicemodel.Endpoint{Addr: a, Ready: true,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}
	return servicemodel.State{}.WithService(svc).WithEndpoints(name, eps)
}

// rememberClients writes n clients into the affinity map, with the endpoints in turn, as if the
// clients had connected.
func rememberClients(tb testing.TB, b *backend, n, endpoints int) {
	tb.Helper()
	rememberClientsFor(tb, b, n, endpoints, func(int) time.Duration { return time.Hour })
}

// rememberClientsFor is rememberClients, each for a time of its own.
func rememberClientsFor(tb testing.TB, b *backend, n, endpoints int,
	timeout func(i int) time.Duration) {
	tb.Helper()
	p := &plan{table: b.pl.table, have: b.pl.version,
		next: b.pl.version.next(false, nil, nil, false, false)}
	fp := &tablePlan{f: nft.IPv4, have: b.pl.tables[0],
		sets: setsOf(nft.IPv4, &b.pl.tables[0].shape),
		ops:  map[string]*setOps{}}
	p.tables = []*tablePlan{fp}
	key := tcpKey("10.96.0.1:80")
	for i := range n {
		client := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		ep := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i%endpoints + 1)}), 8080)
		// not the map that the client's hash selects: none of these clients connects
		name := affinityMap(i % affinityMaps)
		if fp.ops[name] == nil {
			fp.ops[name] = new(setOps)
		}
		fp.ops[name].add.Add(nft.Elem{Key: nft.AppendAddr(nft.AppendFrontend(nil, key),
			client), Data: nft.AppendEndpoint(nil, ep), Timeout: timeout(i)})
	}
	ok(b.send(tb.Context(), p))(tb)
	b.pl.version = p.next
}

// Measures the removal of an endpoint that a tenth of 60,000 remembered clients was given.
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
