package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// A plan that does nothing leaves the version, so that the next one finds it.
func TestAnEmptyPlanLeavesTheVersion(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	b := newMemoryBackend(h.memory)
	o := b.observe()
	before := b.pl.version
	p := b.commit(servicemodel.Diff(o.Table, o.Table))
	require.True(t, p.empty())
	require.Zero(t, p.Stats().Messages)
	require.Equal(t, before, b.pl.version)
	b.apply(o.Table, unitsState().WithEndpoints(goldenService().Name, nil))
	require.Equal(t, before.number+1, b.pl.version.number)
}

// The longest name that fits into a comment can be expressed, and a longer one is refused.
func TestNamesThatAreTooLongAreRefused(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1} {
		fe := &servicemodel.Frontend{Service: servicemodel.PortName{Name: servicemodel.Name{
			Namespace: "default"}, Port: "http"}, Key: servicemodel.FrontendKey{
			Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80},
			Internal: servicemodel.Reject, External: servicemodel.Reject}
		fe.Service.Name.Name = strings.Repeat("n", comment.MaxName-len(fe.Service.String())+more)
		table, err := servicemodel.NewTable(servicemodel.Contents{
			Frontends: []*servicemodel.Frontend{fe}})
		require.NoError(t, err)
		err = check(servicemodel.Diff(nil, table))
		if more == 0 {
			require.NoError(t, err)
			continue
		}
		var unsupported *dataplane.UnsupportedError
		require.ErrorAs(t, err, &unsupported)
		require.Equal(t, "name", unsupported.Field)
		require.Contains(t, unsupported.Hint, "1 bytes too long")
	}
}

// forgotten applies a state to what a kernel holds, and returns whose clients the plan forgets.
func forgotten(h *held, s servicemodel.State) (*memoryBackend, []string) {
	b := newMemoryBackend(h.memory)
	_, p := b.apply(b.observe().Table, s)
	var l []string
	for _, f := range p.forget {
		l = append(l, f.String())
	}
	slices.Sort(l)
	return b, l
}

// Where clients may have an endpoint that left, the version says that they are to be forgotten:
// not where the table was made anew, or no frontend remembers clients any more.
func TestWhoseClientsAreForgotten(t *testing.T) {
	t.Parallel()
	name := goldenService().Name
	plain := goldenService(func(s *servicemodel.Service) { // outside clients have others, too
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
		require.Equal(t, tc.unswept, b.pl.version.unswept, tc.name)
		require.Equal(t, tc.unswept, b.sweep != nil, tc.name)
		next := newMemoryBackend(h.memory)
		next.observe()
		require.Equal(t, tc.unswept, next.pl.version.unswept, tc.name)
	}
	h := holding(t, state)
	h.tables[0].chains["mine"] = h.tables[0].chains["services"]
	h.tables[1].chains["mine"] = h.tables[1].chains["services"]
	b, forgets := forgotten(h, without("web"))
	require.Empty(t, forgets, "the table was broken: nothing is known of it")
	require.False(t, b.pl.version.unswept)
}

// New numbers of slots are added as long as there are not too many; then the rules are written
// anew, without those that are no longer in use.
func TestNumbersOfSlotsAreAddedUpToALimit(t *testing.T) {
	t.Parallel()
	for more, grows := range map[int]bool{0: true, 1: false} {
		pl := &planner{p: &plan{}}
		for i, f := range nft.Families {
			pl.p.families[i].f = f
		}
		pl.have[0].shape.sizes[0][0] = []int{1, 2}
		for n := range maxSizes - 2 + more {
			pl.need[0].sizes[1][n%2] = append(pl.need[0].sizes[1][n%2], 3+n)
		}
		require.Equal(t, grows, pl.grow(0, servicemodel.Rules{}))
		require.Equal(t, grows, len(pl.p.families[0].newSets) > 0)
	}
}
