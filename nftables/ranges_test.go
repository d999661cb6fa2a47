package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// A mapped range has an element for each port, at each of its addresses and at the node ports. Only
// a change of the mapping costs as much.
func TestAnEndpointOfAMappedRangeCostsLittle(t *testing.T) {
	const ports = 10_000
	state := func(target uint16, endpoint string) servicemodel.State {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Ports[0].Port, s.Ports[0].EndPort, s.Ports[0].TargetPort = 10000, 9999+ports, target
			s.Ports[0].NodePort = 30000
		})
		eps := goldenEndpoints(endpoint)
		eps[0].Ports[0].Port = 0
		return servicemodel.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name,
			eps)
	}

	from := mustResolve(t, state(20001, "10.244.1.1"))
	h := committer{Planner: plan.NewPlanner(defaultTable, firstEpoch)}
	h.step(servicemodel.Diff(nil, from))
	change := func(target uint16, endpoint string) (elements int, objects float64) {
		to := ok(servicemodel.Resolve(from, state(target, endpoint)))(t)
		p := h.Plan(servicemodel.Diff(from, to))
		return p.Stats().Elements, testing.AllocsPerRun(3, func() {
			h.Plan(servicemodel.Diff(from, to))
		})
	}

	elements, objects := change(20001, "10.244.1.2")
	require.LessOrEqual(t, elements, 8)
	require.Less(t, objects, 500.0)
	elements, _ = change(20002, "10.244.1.1")
	require.InDelta(t, 2*2*ports, elements, 8, "each port deleted and added")
}
