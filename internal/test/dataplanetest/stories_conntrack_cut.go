package dataplanetest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// drained gives connections a second.
var drained = servicemodel.ConnectionPolicy{Mode: servicemodel.DrainConnections, Drain: time.Second}

// connectionsOfEndpointThatGoes tests, for each policy, the connections to an endpoint that was
// removed but still serves.
func connectionsOfEndpointThatGoes(t *testing.T, w *world) {
	const count = 20
	keeper := w.keepFlows(t, servicemodel.ConnectionPolicy{})
	w.serve(t, "pod2", servicemodel.TCP, flowTarget)
	w.serve(t, "pod3", servicemodel.TCP, flowTarget)
	for _, p := range []servicemodel.ConnectionPolicy{{}, drained,
		{Mode: servicemodel.CutConnections}} {
		own := func(s *servicemodel.Service) { s.Connections = p }
		w.apply(t, flowState(flowEndpoints("pod2"), own))
		var all []*netnstest.Conns
		for _, to := range []struct {
			from string
			addr netip.AddrPort
		}{{"pod1", netip.AddrPortFrom(clusterIP[0], flowPort)},
			{"outside1", netip.AddrPortFrom(externalIP[1], flowPort)},
			{"outside2", netip.AddrPortFrom(nodeIP[0], flowNodePort)}} {
			c := ok(netnstest.OpenConns(t.Context(), w.hosts[to.from], to.addr, count))(t)
			all = append(all, c)
		}

		r := w.apply(t, flowState(flowEndpoints("pod3"), own))
		if p.Mode == servicemodel.CutConnections {
			requirePings(t, p, all, 0, count)
		} else {
			requirePings(t, p, all, count, 0)
		}

		if p == drained {
			if r.Settle <= 0 || r.Settle > p.Drain {
				t.Errorf("%s: to be settled in %s", p, r.Settle)
			}
			w.settleUntil(t, func() bool { return keeper.Totals().Reset >= len(all)*count })
			requirePings(t, p, all, 0, count)
		}

		for _, c := range all {
			c.Close() //nolint:errcheck // most are closed
		}
	}

	if n := keeper.Totals().Reset; n != 6*count {
		t.Errorf("%d connections were cut, not %d: %+v", n, 6*count, keeper.Totals())
	}
}

// requirePings checks the numbers of live and of reset connections in each list.
func requirePings(t *testing.T, p servicemodel.ConnectionPolicy, all []*netnstest.Conns, living,
	reset int) {
	t.Helper()
	for i, c := range all {
		r := c.Ping(deathPatience)
		if r.Answered != living || r.Reset != reset || r.Silent+r.Closed > 0 {
			t.Errorf("%s, connections %d: wanted %d living and %d reset, got %+v", p, i, living,
				reset, r)
		}
	}
}
