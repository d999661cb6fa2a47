package servicemodel_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestTraceOfAConflict(t *testing.T) {
	t.Parallel()
	thief := webService(named("thief"), func(s *sm.Service) {
		s.ClusterIPs, s.ExternalIPs = addrs("10.96.0.2"), addrs("10.96.0.1")
	})
	s := stateOf(thisNode, webService(), localEndpoint).WithService(thief)
	trace := mustResolve(t, nil, s).Trace(packet(fromPod, to("10.96.0.1:80")), nodeAddrs)
	require.Contains(t, trace.Steps, sm.Step{Kind: "conflict",
		Text: "default/thief:http claims it too, as an external IP, and does not get it"})
}

// A trace agrees with Decide, for the resolved table and for a table that a kernel would return.
// Its steps are in order and end with the outcome. Every unused endpoint has a step.
func TestTracesAgreeWithDecisions(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 300 {
		s := r.state()
		table := mustResolve(t, nil, s)
		here := sm.Locality(some(r, 4, func() netip.Addr { return r.addr(r.family(), 192, 6) }))
		read := ok(sm.NewTable(table.Contents()))(t)
		for range 60 {
			p := r.packet(s, here)
			trace := table.Trace(p, here)
			require.Equal(t, table.Decide(p, here), trace.Decision)
			requireSteps(t, s, trace)
			other := read.Trace(p, here)
			require.Equal(t, trace.Decision.Outcome, other.Decision.Outcome)
			require.Equal(t, trace.Decision.Candidates, other.Decision.Candidates)
		}
	}
}

// stepKinds are the kinds of steps in their order.
var stepKinds = []string{"source", "destination", "conflict", "sources", "policy", "nearness",
	"endpoints", "excluded", "growing", "affinity", "masquerade", "outcome"}

func requireSteps(t *testing.T, s sm.State, trace sm.Trace) {
	t.Helper()
	excluded, d := 0, trace.Decision
	for i, step := range trace.Steps {
		require.NotEmpty(t, step.Text)
		require.Contains(t, stepKinds, step.Kind)
		require.True(t, i == 0 || slices.Index(stepKinds, trace.Steps[i-1].Kind) <=
			slices.Index(stepKinds, step.Kind), "%v", trace)
		if step.Kind == "excluded" {
			excluded++
		}
	}

	last := trace.Steps[len(trace.Steps)-1]
	require.Equal(t, "outcome", last.Kind)
	require.True(t, strings.HasPrefix(last.Text, string(d.Outcome)))
	require.Contains(t, last.Text, d.Cause.String())
	for _, c := range d.Candidates {
		require.Contains(t, last.Text, c.Endpoint.String())
	}
	if d.Frontend != nil && d.Cause.Kind != "source" {
		require.Equal(t, len(s.Endpoints(d.Frontend.Service.Name)), excluded+len(d.Candidates),
			"%v", trace)
	}
}
