package flows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
)

// The flows of the last part are deleted with it, including flows to node ports.
func TestFlowsOfTheLastPart(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		w := newWorld(t, flows.Config{Connections: cut()})
		parts := func() *dataplane.Parts {
			return dataplane.NewParts(w.kernel, &dataplane.PartsConfig{Flows: w.keeper})
		}
		p := parts()
		n := node
		n.LocalhostNodePorts = true
		s := serving(service(), endpoints(1)).WithNode(n)
		ok(p.Apply(t.Context(), dns.Namespace, s))(t)
		w.put(udp1, tcp1, node1, "udp 192.0.2.10:30053 > 10.244.0.1:5353",
			"udp 127.0.0.1:30053 > 10.244.0.1:5353", "tcp 192.0.2.99:30080 > 10.244.0.1:8080")
		if restarts {
			w.restart(t)
			p = parts()
		}

		ok(p.Remove(t.Context(), dns.Namespace))(t)
		require.Equal(t, []string{"tcp 192.0.2.99:30080 > 10.244.0.1:8080"}, w.list(), restarts)
	}
}
