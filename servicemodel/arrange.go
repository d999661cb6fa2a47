package servicemodel

import (
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Arrange returns t with the slots of its pools reordered to match like: an endpoint that is in the
// same pool of both tables gets its slot in like. If t was resolved from scratch and like is the
// kernel's table, the result differs from like in few slots.
func (t *Table) Arrange(like *Table) *Table {
	if t == nil || like == nil {
		return t
	}
	arranged := *t
	for c := range pmap.Diff(like.pools, t.pools, (*Pool).Equal) {
		if !c.InOld || !c.InNew {
			continue
		}
		p := arrangeSlots(c.Old, c.New)
		if c.Old.Units == nil && p.Scheduler.Fed() && c.Old.equalButUnits(p) {
			p = c.Old // the backend has no units for shares
		}
		if !p.Equal(c.New) {
			arranged.pools = arranged.pools.Set(c.Key, p)
		}
	}

	return &arranged
}

// AssumedIn returns held plus the pools of t that frontends of held use but that held lacks. A
// kernel may have no room for such a pool, so a table that was read from the kernel lacks it.
// AssumedIn returns held itself if no pool is missing.
func (t *Table) AssumedIn(held *Table) *Table {
	if held == nil {
		return nil
	}
	pools, found := held.pools, false
	for c := range pmap.Diff(held.pools, t.orEmpty().pools, always[*Pool]) {
		if !c.InOld && held.balancesOver(c.Key) {
			pools, found = pools.Set(c.Key, c.New), true
		}
	}

	if !found {
		return held
	}
	assumed := *held
	assumed.pools = pools
	return &assumed
}

// balancesOver reports whether a frontend refers to the pool. The table may lack the pool.
func (t *Table) balancesOver(id PoolID) bool {
	return slices.ContainsFunc(t.owned.At(id.Service), func(f *Frontend) bool {
		return f.Key.Family() == id.Family && f.balancesOver(id.Local)
	})
}

// arrangeSlots is [arrange] for a pool whose slots are not sorted.
func arrangeSlots(like, p *Pool) *Pool {
	want := *p
	want.Slots = slices.SortedFunc(slices.Values(want.Slots), func(a, b Slot) int {
		return a.Endpoint.Compare(b.Endpoint)
	})
	return arrange(like, &want)
}
