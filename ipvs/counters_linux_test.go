package ipvs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// counters returns the counters of a rig's instance.
func (r *rig) counters() *Counters {
	c := &Counters{kernel{table: defaultTable, instance: instanceFlag(defaultTable)}}
	c.kernel.vs = ok(r.fake.Dial(context.Background(), nil))(r.t)
	c.kernel.nf = ok(rawnl.Dial(&rawnl.Config{NetNS: r.ns.NetNS()}))(r.t)
	r.t.Cleanup(func() { require.NoError(r.t, c.Close()) })
	return c
}

// A virtual server by mark counts for its frontend. The rest is the counts of removed destinations.
// Virtual servers of other programs are ignored.
func TestCountersOfFrontends(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"},
		ClusterIPs:            []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		ExternalIPs:           []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ExternalTrafficPolicy: sm.PolicyLocal,
		Ports:                 []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
	ports := []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}
	here := netip.MustParseAddrPort("10.244.0.1:8080")
	there := netip.MustParseAddrPort("10.244.0.2:8080")
	e := r.engine()
	table := r.apply(e, sm.State{}.WithNode(sm.Node{Name: "this"}).
		WithService(svc).WithEndpoints(svc.Name, []sm.Endpoint{
		{Addr: here.Addr(), Node: "this", Ports: ports},
		{Addr: there.Addr(), Node: "other", Ports: ports},
	})).Changes.New
	foreign := ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("192.0.2.9:80"))
	r.addForeign(foreign)

	dest := func(a netip.AddrPort) ipvsnl.DestinationKey {
		return ipvsnl.DestinationKey{Addr: a.Addr(), Port: a.Port()}
	}
	byMark := 0
	for _, k := range r.fake.Keys() {
		n := uint64(1)
		if k.FWMark != 0 {
			n, byMark = 100, byMark+1
			r.fake.SetStats(k, dest(there), ipvsnl.Stats{Connections: 7})
		}

		r.fake.SetStats(k, ipvsnl.DestinationKey{}, ipvsnl.Stats{Connections: 10 * n, InPackets: 5,
			InBytes: 6, OutPackets: 7, OutBytes: 8})
		if k != foreign {
			r.fake.SetStats(k, dest(here), ipvsnl.Stats{Connections: 2 * n, InPackets: 5})
		}
	}

	require.Equal(t, 1, byMark)
	got := ok(r.counters().Read(t.Context()))(t)
	require.Len(t, got.Pairs, 6, got.Pairs)
	sums := got.Of(table, nil)
	external := sm.FrontendKey{Addr: svc.ExternalIPs[0], Protocol: sm.TCP, Port: 80}
	require.Equal(t, counters.Values{Connections: 1010, PacketsIn: 10, BytesIn: 12, PacketsOut: 14,
		BytesOut: 16}, sums.Frontend(external))
	require.Equal(t, counters.Values{Connections: 202, PacketsIn: 10},
		sums.Endpoint(external, here))
	require.Equal(t, counters.Values{Connections: 7}, sums.Endpoint(external, there))
}

func (r *rig) addForeign(k ipvsnl.ServiceKey) {
	r.t.Helper()
	r.submit(ipvsnl.NewService(ipvsnl.Service{ServiceKey: k, Scheduler: "rr"}))
}
