package servicemodel

import (
	"cmp"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// align walks two sorted lists side by side and yields the indexes of elements that belong
// together, -1 where one list has none.
func align[T any](a, b []T, compare func(T, T) int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		i, j := 0, 0
		for i < len(a) || j < len(b) {
			c := 0
			switch {
			case i == len(a):
				c = 1
			case j == len(b):
				c = -1
			default:
				c = compare(a[i], b[j])
			}
			x, y := i, j
			if c > 0 {
				x = -1
			} else {
				i++
			}
			if c < 0 {
				y = -1
			} else {
				j++
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// byPort yields the claims of each service port of a list sorted by service port.
func byPort(claims []*Frontend) iter.Seq2[PortName, []*Frontend] {
	return func(yield func(PortName, []*Frontend) bool) {
		for len(claims) > 0 {
			n := 1
			for n < len(claims) && claims[n].Service == claims[0].Service {
				n++
			}
			if !yield(claims[0].Service, claims[:n:n]) {
				return
			}
			claims = claims[n:]
		}
	}
}

// compareClaims orders the claims of a service by service port and key.
func compareClaims(a, b *Frontend) int {
	if c := a.Service.Compare(b.Service); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

func comparePools(a, b *Pool) int { return a.ID.Compare(b.ID) }

// filter returns the elements of list for which keep holds. If that is all of them, it returns list
// itself.
func filter[T any](list []T, keep func(T) bool) []T {
	for i, x := range list {
		if keep(x) {
			continue
		}
		kept := slices.Clone(list[:i])
		for _, x := range list[i+1:] {
			if keep(x) {
				kept = append(kept, x)
			}
		}
		return kept
	}
	return list
}

// arrange returns the pool want with its slots reordered to match like. want's slots must be
// sorted. An endpoint that like has, too, keeps its slot in like, if want has that many slots. The
// other endpoints fill the holes: first those whose slot lies beyond the end, then new ones in
// order. So as few slots as possible change. arrange returns like itself if nothing differs.
func arrange(like, want *Pool) *Pool {
	if like == nil {
		return want
	}
	slots := make([]Slot, len(want.Slots))
	placed := make([]bool, len(want.Slots))
	var waiting []Slot
	j := -1
	for i, s := range like.Slots {
		// Usually the next slot is the right one.
		if j++; j >= len(want.Slots) || want.Slots[j].Endpoint != s.Endpoint {
			var found bool
			if j, found = slices.BinarySearchFunc(want.Slots, s, func(a, b Slot) int {
				return a.Endpoint.Compare(b.Endpoint)
			}); !found {
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

// Arrange returns t with the slots of its pools reordered: an endpoint that like has in the same
// pool gets the slot that it has there. A table that was resolved from scratch then differs in few
// slots from one that was read back from the kernel.
func (t *Table) Arrange(like *Table) *Table {
	if t == nil || like == nil {
		return t
	}
	arranged := *t
	for c := range pmap.Diff(like.pools, t.pools, (*Pool).Equal) {
		if !c.InOld || !c.InNew {
			continue
		}
		if p := arrangeSlots(c.Old, c.New); !p.Equal(c.New) {
			arranged.pools = arranged.pools.Set(c.Key, p)
		}
	}
	return &arranged
}

// AssumedIn returns held with those pools of the table added that frontends of held balance over
// and that held lacks. A kernel may have no place for such a pool, so a table that was read from it
// lacks the pool. AssumedIn returns held itself if no pool is missing.
func (v tableView) AssumedIn(held *Table) *Table {
	if held == nil {
		return nil
	}
	pools, found := held.pools, false
	for c := range pmap.Diff(held.pools, v.t.pools, always[*Pool]) {
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
		internal, in := f.Pool(f.Internal)
		external, ex := f.Pool(f.External)
		return in && internal == id || ex && external == id
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

// addrCounts is a set of addresses. It counts how many services contribute each address.
type addrCounts = pmap.Map[netip.Addr, int, addrHash]

// recount replaces one service's addresses in a set.
func recount(set addrCounts, old, now []netip.Addr) addrCounts {
	for i, j := range align(old, now, netip.Addr.Compare) {
		switch {
		case i < 0:
			set = set.Set(now[j], set.At(now[j])+1)
		case j < 0:
			if n := set.At(old[i]); n > 1 {
				set = set.Set(old[i], n-1)
			} else {
				set = set.Delete(old[i])
			}
		}
	}
	return set
}

// countAddrs makes a set of the addresses, which must have no zones. It sorts them as numbers,
// which is five times as fast for a hundred thousand addresses.
func countAddrs(addrs []netip.Addr) addrCounts {
	v4 := make([]uint32, 0, len(addrs))
	var v6 [][2]uint64
	for _, a := range addrs {
		if a.Is4() {
			b := a.As4()
			v4 = append(v4, binary.BigEndian.Uint32(b[:]))
			continue
		}
		b := a.As16()
		v6 = append(v6, [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])})
	}
	slices.Sort(v4)
	slices.SortFunc(v6, func(a, b [2]uint64) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	var set pmap.Builder[netip.Addr, int, addrHash]
	for n, times := range runs(v4) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], n)
		set.Append(netip.AddrFrom4(b), times)
	}
	for n, times := range runs(v6) {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], n[0])
		binary.BigEndian.PutUint64(b[8:], n[1])
		set.Append(netip.AddrFrom16(b), times)
	}
	return set.Map()
}

// runs yields each element of a sorted list once, with how many times it occurs.
func runs[T comparable](list []T) iter.Seq2[T, int] {
	return func(yield func(T, int) bool) {
		for len(list) > 0 {
			n := 1
			for n < len(list) && list[n] == list[0] {
				n++
			}
			if !yield(list[0], n) {
				return
			}
			list = list[n:]
		}
	}
}

// addrSet makes a set of the addresses, each counting once.
func addrSet(addrs []netip.Addr) addrCounts {
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	return countAddrs(slices.Compact(addrs))
}
