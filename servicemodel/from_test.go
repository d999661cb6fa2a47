package servicemodel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nocopy"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestAChangeSetFromAnotherTableIsPartOfTheWhole(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 200 {
		s := r.state()
		a, b, x := mustResolve(t, nil, s), mustResolve(t, nil, r.edit(r.edit(s))),
			mustResolve(t, nil, r.edit(r.edit(s)))
		c := sm.Diff(a, b)
		require.Equal(t, c.String(), nocopy.Of(a).Changes(c).String())
		require.True(t, nocopy.Of(b).Changes(c).Empty())
		require.Equal(t, onlyOf(c, sm.Diff(x, b)).String(), nocopy.Of(x).Changes(c).String())
		require.Same(t, x, nocopy.Of(x).Changes(c).Old)
		require.Same(t, b, nocopy.Of(x).Changes(c).New)
		all := sm.Diff(nil, b)
		require.Equal(t, all.String(), nocopy.Of(all.Old).Changes(all).String())
	}
}

// onlyOf returns the part of the change set whole that concerns the objects of c.
func onlyOf(c, whole *sm.ChangeSet) *sm.ChangeSet {
	part := *whole
	if c.Rules == nil {
		part.Rules = nil
	}
	part.Frontends = both(c.Frontends, whole.Frontends,
		func(f sm.Change[sm.Frontend]) sm.FrontendKey { return one(f.Old, f.New).Key })
	part.Pools = both(c.Pools, whole.Pools,
		func(p sm.Change[sm.Pool]) sm.PoolID { return one(p.Old, p.New).ID })
	address := func(a sm.AddrChange) netip.Addr { return a.Addr }
	part.ClusterIPs = both(c.ClusterIPs, whole.ClusterIPs, address)
	part.Hairpins = both(c.Hairpins, whole.Hairpins, address)
	part.Health = both(c.Health, whole.Health, func(h sm.Change[sm.HealthCheck]) sm.Name {
		return one(h.Old, h.New).Service
	})
	return &part
}

// both returns the elements of list whose keys also occur in other.
func both[T any, K comparable](other, list []T, key func(T) K) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool {
		return !slices.ContainsFunc(other, func(o T) bool { return key(o) == key(e) })
	})
}

func one[T any](old, new *T) *T {
	if old != nil {
		return old
	}
	return new
}
