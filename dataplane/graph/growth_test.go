package graph_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/graph"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/internal/test/growth"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func write(g *graph.Graph) { _ = g.SVG() + g.DOT() + g.Mermaid() }

// The time grows with the number of drawn objects.
//
//nolint:paralleltest // it measures
func TestCostsAreLinear(t *testing.T) {
	t.Run("services", func(t *testing.T) {
		growth.Linear(t, 1<<13, func(n int) *sm.Table {
			st := sm.State{}
			for i := range n {
				st = st.WithService(&sm.Service{
					Name:  sm.Name{Namespace: "default", Name: fmt.Sprint("s", i)},
					Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
					ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8),
						byte(i)})}})
			}

			table, err := sm.Resolve(nil, st)
			require.NoError(t, err)
			return table
		}, func(table *sm.Table) { write(graph.Services(table, nil)) })
	})

	t.Run("chains and their rules", func(t *testing.T) {
		order := []hooks.Hook{hooks.Prerouting, hooks.Input, hooks.Forward, hooks.Output,
			hooks.Postrouting}
		growth.Linear(t, 1<<13, func(n int) (l []hooks.Chain) {
			for i := range n {
				l = append(l, hooks.Chain{Family: "inet", Table: "fw", Name: fmt.Sprint("c", i),
					Hook: order[i%len(order)], Priority: int32(-i),
					Drops: []hooks.Rule{{Chain: "c", Text: "drop"}}})
			}

			return l
		}, func(l []hooks.Chain) { write(graph.Hooks(l, sm.IPv4, nil)) })
	})
}
