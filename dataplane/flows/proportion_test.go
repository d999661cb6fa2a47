package flows_test

import (
	"fmt"
	"testing"

	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/internal/test/proportion"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A change of one endpoint costs the same with many other services. The pools of its service are
// compared.
func TestFlowsCostTheSameBesideManyServices(t *testing.T) {
	for _, p := range []sm.Protocol{sm.TCP, sm.UDP} {
		for _, mode := range []sm.ConnectionPolicy{{}, {Mode: sm.CutConnections},
			{Mode: sm.DrainConnections, Drain: 3600e9}} {
			t.Run(fmt.Sprint(p, " ", mode.Mode), func(t *testing.T) {
				proportion.Calls(t, proportion.Cost{Bytes: 600}, func(n int) func() {
					states := [2]sm.State{proportion.Many(n, func(s *sm.Service) {
						s.Ports[0].Protocol, s.Connections = p, mode
					})}
					states[1] = proportion.Replace(states[0])
					k := ok(flows.New(&fakeTable{}, nil))(t)
					before := ok(sm.Resolve(nil, states[0]))(t)
					k.Changed(states[0], sm.Diff(nil, before))
					ok(k.Settle(t.Context()))(t)
					at := 0
					return func() {
						at = 1 - at
						table := ok(sm.Resolve(before, states[at]))(t)
						k.Changed(states[at], sm.Diff(before, table))
						ok(k.Settle(t.Context()))(t)
						before = table
					}
				})
			})
		}
	}
}
