package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/persist"
)

// arrange returns the pool that want describes, its slots sorted, with every endpoint that like
// also has standing where like has it, as far as there is such a slot. The others fill the holes:
// first those that stood beyond the end, then new ones in order. So no slot changes that need not.
// It returns like itself if nothing differs.
func arrange(like, want *Pool) *Pool {
	if like == nil {
		return want
	}
	slots := make([]Slot, len(want.Slots))
	placed := make([]bool, len(want.Slots))
	var waiting []Slot
	j := -1
	for i, s := range like.Slots {
		// Mostly it is the one after the last.
		if j++; j >= len(want.Slots) || want.Slots[j].Endpoint != s.Endpoint {
			var found bool
			if j, found = slices.BinarySearchFunc(want.Slots, s.Endpoint, compareSlot); !found {
				continue
			}
		}
		if placed[j] {
			continue
		}
		placed[j] = true
		if i < len(slots) {
			slots[i] = want.Slots[j]
		} else {
			waiting = append(waiting, want.Slots[j])
		}
	}
	for j, s := range want.Slots {
		if !placed[j] {
			waiting = append(waiting, s)
		}
	}
	for i := range slots {
		if !slots[i].Endpoint.IsValid() {
			slots[i], waiting = waiting[0], waiting[1:]
		}
	}
	p := *want
	p.Slots = slots
	if like.Equal(&p) {
		return like
	}
	return &p
}

func compareSlot(s Slot, a netip.AddrPort) int { return s.Endpoint.Compare(a) }

// Arrange returns t with the slots of its pools rearranged: an endpoint that the table like has in
// the same pool gets the slot that it has there. A table that was resolved from scratch then
// differs in few slots from one that was read back from the kernel.
func (t *Table) Arrange(like *Table) *Table {
	if t == nil || like == nil {
		return t
	}
	arranged := *t
	for c := range persist.Diff(like.pools, t.pools, (*Pool).Equal) {
		if !c.InOld || !c.InNew {
			continue
		}
		if p := arrangeSlots(c.Old, c.New); !p.Equal(c.New) {
			arranged.pools = arranged.pools.Set(c.Key, p)
		}
	}
	return &arranged
}

// arrangeSlots is [arrange] for a pool whose slots are in any order.
func arrangeSlots(like, p *Pool) *Pool {
	want := *p
	want.Slots = slices.SortedFunc(slices.Values(want.Slots), func(a, b Slot) int {
		return a.Endpoint.Compare(b.Endpoint)
	})
	return arrange(like, &want)
}
