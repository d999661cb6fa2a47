package servicemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nocopy"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The parts of a change set lead to the same table as the whole, each part adds something, and in
// no table on the way does a frontend lack the pool that it balances over.
func TestPartsOfAChangeSetLeadWhereItLeads(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	parts := 0
	for i := range 60 {
		var old *sm.Table
		if i%3 > 0 {
			old = mustResolve(t, nil, r.state())
		}
		next := mustResolve(t, old, r.state())
		c := sm.Diff(old, next)
		for {
			first, rest := nocopy.Of(c.New).Split(c)
			if first == nil {
				break
			}
			parts++
			require.False(t, first.Empty())
			require.True(t, sm.Diff(first.Old, first.New).String() == first.String(),
				"it is what it says")
			require.True(t, first.New == rest.Old)
			for fe := range first.New.Frontends() {
				for _, v := range []sm.Verdict{fe.Internal, fe.External} {
					if id, ok := fe.Pool(v); ok {
						require.NotNil(t, first.New.Pool(id), "pool of %v", fe)
					}
				}
			}
			for _, f := range first.Frontends {
				require.True(t, f.New == nil || !nocopy.Of(next).HasClusterIP(f.New.Key.Addr) ||
					nocopy.Of(first.New).HasClusterIP(f.New.Key.Addr), "%v", f.New)
			}
			for a := range first.New.ClusterIPs() {
				require.True(t, nocopy.Of(next).HasClusterIP(a) ||
					nocopy.Of(first.Old).HasClusterIP(a), "%v", a)
			}
			for _, p := range first.Pools {
				if p.New == nil {
					continue
				}
				for _, slot := range p.New.Slots {
					a := slot.Endpoint.Addr()
					require.True(t, !nocopy.Of(next).HasHairpin(a) ||
						nocopy.Of(first.New).HasHairpin(a), "%v", p.New)
				}
			}
			require.Less(t, differences(rest), differences(c))
			require.True(t, sm.Diff(old, next).New == rest.New)
			c = rest
		}
		require.Empty(t, sm.Diff(c.Old.Apply(c), next).String())
	}
	require.Greater(t, parts, 60)
}

func TestWhatAddsLittleHasNoParts(t *testing.T) {
	t.Parallel()
	one := mustResolve(t, nil,
		sm.State{}.WithService(&sm.Service{Name: sm.Name{Namespace: "a", Name: "b"},
			ClusterIPs: addrs("10.96.0.1"),
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}))
	first, rest := nocopy.Of(sm.Diff(nil, one).New).Split(sm.Diff(nil, one))
	require.True(t, first == nil && rest == nil)
	first, rest = nocopy.Of(sm.Diff(one, nil).New).Split(sm.Diff(one, nil))
	require.True(t, first == nil && rest == nil)
}

func differences(c *sm.ChangeSet) int {
	return len(c.Frontends) + len(c.Pools) + len(c.ClusterIPs) + len(c.Hairpins)
}

// New objects come first and removed ones last, in each half, too.
func TestPartsAreInOrder(t *testing.T) {
	t.Parallel()
	state := func(names ...string) (s sm.State) {
		for _, n := range names {
			name := sm.Name{Namespace: "a", Name: n[:1]}
			s = s.WithService(&sm.Service{Name: name, ClusterIPs: addrs("10.96.0." + n[1:2]),
				Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}).WithEndpoints(name,
				[]sm.Endpoint{{Addr: addrs("10.244.0." + n[2:])[0], Ready: true,
					Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 80}}}})
		}
		return s
	}
	old, next := mustResolve(t, nil, state("a11", "b22", "c33", "d44")),
		mustResolve(t, nil, state("c35", "d46", "e57", "f68"))
	var order []string
	var commit func(c *sm.ChangeSet)
	commit = func(c *sm.ChangeSet) {
		if first, rest := nocopy.Of(c.New).Split(c); first != nil {
			commit(first)
			commit(rest)
			return
		}
		for _, p := range c.Pools {
			if p.Old != nil {
				p.New = p.Old
			}
			order = append(order, p.New.ID.Service.Name.Name)
		}
	}
	commit(sm.Diff(old, next))
	require.Equal(t, []string{"e", "f", "c", "d", "a", "b"}, order)
}
