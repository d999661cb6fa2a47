package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// forgotten applies a state to the elements in a kernel, and returns the frontends whose clients
// the plan forgets.
func forgotten(h *held, s servicemodel.State) (*memoryBackend, []string) {
	b := newMemoryBackend(h.memory)
	_, p := b.apply(b.observe().Table, s)
	var l []string
	for _, f := range p.Forget {
		l = append(l, f.String())
	}
	slices.Sort(l)
	return b, l
}

// If clients may have a removed endpoint, the version says that they must be forgotten. It does not
// say so if the table was replaced, or if no frontend remembers clients any more.
func TestWhoseClientsAreForgotten(t *testing.T) {
	t.Parallel()
	name := goldenService().Name

	// outside clients have different endpoints
	plain := goldenService(func(s *servicemodel.Service) {
		s.Name.Name, s.Ports[0].NodePort = "plain", 30081
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.30")}
		s.ExternalTrafficPolicy = servicemodel.PolicyLocal
	})
	state := unitsState().WithService(plain).WithEndpoints(plain.Name,
		goldenEndpoints("10.244.5.1"))
	without := func(service string) servicemodel.State {
		return state.WithoutService(servicemodel.Name{Namespace: "default", Name: service})
	}
	node := goldenNode()
	node.LocalPods = servicemodel.PodDetector{Bridge: "cni0"}
	marked := goldenNode()
	marked.MasqueradeMark = 0x40
	for _, tc := range []struct {
		name    string
		state   servicemodel.State
		forgets int
		unswept bool
	}{
		{"nothing changes", state, 0, false},
		{"an endpoint is replaced", state.WithEndpoints(name, append(state.Endpoints(name)[1:],
			goldenEndpoints("10.244.1.9")...)), 3, true},
		{"an endpoint more", state.WithEndpoints(name, append(slices.Clone(state.Endpoints(name)),
			goldenEndpoints("10.244.1.9")...)), 0, false},
		{"a service without affinity goes", without("db"), 0, false},
		{"a service with affinity goes", without("web"), 6, true},
		{"pods are told in another way", state.WithNode(node), 4, true},
		{"another mark", state.WithNode(marked), 0, false},
		{"a service with affinity goes, and the maps with it", without("web").WithNode(marked), 6,
			false},
	} {
		h := holding(t, state)
		b, forgets := forgotten(h, tc.state)
		require.Len(t, forgets, tc.forgets, "%s: %v", tc.name, forgets)
		require.Equal(t, tc.unswept, b.pl.Version.Unswept, tc.name)
		require.Equal(t, tc.unswept, b.sweep != nil, tc.name)
		next := newMemoryBackend(h.memory)
		next.observe()
		require.Equal(t, tc.unswept, next.pl.Version.Unswept, tc.name)
	}

	h := holding(t, state)
	h.tables[0].Chains["mine"] = h.tables[0].Chains["services"]
	h.tables[1].Chains["mine"] = h.tables[1].Chains["services"]
	b, forgets := forgotten(h, without("web"))
	require.Empty(t, forgets, "the table was broken: nothing is known of it")
	require.False(t, b.pl.Version.Unswept)
}

// Before pools are balanced in another way, a separate transaction adds the rules. A broken table
// needs no such transaction: it is replaced, and no packet relies on its rules.
func TestRulesComeBeforePoolsThatNeedThem(t *testing.T) {
	t.Parallel()
	name := goldenService().Name
	changed := *unitsState().Service(name)
	changed.Scheduler = servicemodel.Maglev
	for _, tc := range []struct {
		name          string
		to            *servicemodel.Service
		broken, ahead bool
	}{
		{"another way", &changed, false, true},
		{"the same way", goldenService(), false, false},
		{"another way, and the table is broken", &changed, true, false},
	} {
		h := holding(t, unitsState())
		b := newMemoryBackend(h.memory)
		held := b.observe().Table
		for _, table := range b.pl.Tables {
			table.Broken = tc.broken
		}
		want := mustResolve(t, unitsState().WithService(tc.to)).Arrange(held)
		p := b.pl.PlanAhead(servicemodel.Diff(held, want))
		require.Equal(t, tc.ahead, p != nil, tc.name)
	}
}
