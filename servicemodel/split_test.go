package servicemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// The parts of a change set lead where it leads, each adds something, and no table on the way has a
// frontend without the pool that it balances over.
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
		for first, rest := c.Split(); first != nil; first, rest = rest.Split() {
			parts++
			require.NotEmpty(t, first.Frontends)
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
				require.True(t, !next.HasClusterIP(f.New.Key.Addr) ||
					first.New.HasClusterIP(f.New.Key.Addr), "%v", f.New)
			}
			for _, p := range first.Pools {
				for _, slot := range p.New.Slots {
					a := slot.Endpoint.Addr()
					require.True(t, !next.HasHairpin(a) || first.New.HasHairpin(a), "%v", p.New)
				}
			}
			require.Less(t, len(rest.Frontends), len(c.Frontends))
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
	first, rest := sm.Diff(nil, one).Split()
	require.True(t, first == nil && rest == nil)
	first, rest = sm.Diff(one, nil).Split()
	require.True(t, first == nil && rest == nil)
}
