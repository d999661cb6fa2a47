package servicemodel

import (
	"hash/fnv"
	"slices"
)

// AffinityText returns the session affinity of a frontend as text, such as "3h0m0s by /24 for the
// service", or "" if it has no affinity.
func (f *Frontend) AffinityText() string { return f.affinityText() }

// Shares returns the share of new connections that each slot of a pool should get, from 0 to 1.
// Shares follow the weights, except under [RoundRobin] and [LeastConn], where they are equal.
// Shares that were fed back ([Endpoint.Share]) take precedence. [DestHash], [LocalityLC],
// [LocalityLCR], [Failover] and [Overflow] have no shares, so the result is nil.
func (p *Pool) Shares() []float64 {
	switch p.Scheduler {
	case DestHash, LocalityLC, LocalityLCR, Failover, Overflow:
		return nil
	}

	total, weights := 0., p.effective()
	for _, w := range weights {
		total += float64(w)
	}
	shares := make([]float64, len(p.Slots))
	for i, w := range weights {
		shares[i] = float64(w) / total
	}
	return shares
}

// maglevSizes are the possible sizes of a table of [Maglev], all prime. A pool of n endpoints has
// the smallest table of at least 100·n entries, or the largest table. The steps are wide, because
// nearly all clients move when the size of a pool's table changes.
var maglevSizes = [...]int{1021, 4093, 16381, 65521}

// MaglevSize returns the number of entries in a pool's [Maglev] table. It is 0 if the pool has more
// endpoints than the largest table has entries.
func (p *Pool) MaglevSize() int { return maglevSize(len(p.Slots)) }

func maglevSize(endpoints int) int {
	for _, size := range maglevSizes {
		if 100*endpoints <= size {
			return size
		}
	}

	if largest := maglevSizes[len(maglevSizes)-1]; endpoints <= largest {
		return largest
	}
	return 0
}

// Maglev returns a pool's [Maglev] table: for each entry, the slot of its endpoint. The table
// depends only on the endpoints and their weights, not on the order of slots. Every endpoint has an
// entry.
//
// Each endpoint has a list of all entries, in an order that depends on a hash of the endpoint
// (Eisenbud et al., Maglev, NSDI 2016, section 3.4). The endpoints take turns. In its turn, an
// endpoint takes the next free entry of its list. An endpoint below the greatest weight has a turn
// only in some rounds, in proportion to its weight.
func (p *Pool) Maglev() []uint16 {
	size, slots := p.MaglevSize(), p.Slots
	if size == 0 || len(slots) == 0 {
		return nil
	}
	takers := make([]maglevTaker, len(slots))
	var greatest int
	for i := range slots {
		takers[i] = newMaglevTaker(&slots[i], i, size)
		greatest = max(greatest, takers[i].weight)
	}

	slices.SortFunc(takers, func(a, b maglevTaker) int {
		return slots[a.slot].Endpoint.Compare(slots[b.slot].Endpoint)
	})
	table, taken := make([]uint16, size), make([]bool, size)
	for left, round := size, 0; ; round++ {
		for i := range takers {
			t := &takers[i]
			if round*t.weight < t.turns*greatest {
				continue
			}
			t.turns++
			for taken[t.next] {
				if t.next += t.skip; t.next >= size {
					t.next -= size
				}
			}

			table[t.next], taken[t.next] = uint16(t.slot), true
			if left--; left == 0 {
				return table
			}
		}
	}
}

// maglevTaker is an endpoint that takes entries.
type maglevTaker struct {
	slot, weight int
	turns        int // the number of its turns so far
	next, skip   int // its list: the next entry, and the distance to the one after it
}

func newMaglevTaker(s *Slot, slot, size int) maglevTaker {
	h := fnv.New64a()
	addr, port := s.Endpoint.Addr().As16(), s.Endpoint.Port()
	h.Write(append(addr[:], byte(port>>8), byte(port)))
	first := mix(h.Sum64())
	return maglevTaker{slot: slot, weight: int(s.Weight), next: int(first % uint64(size)),
		skip: int(mix(first)%uint64(size-1)) + 1}
}

// mix spreads the bits of a number, so that similar numbers become different (SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
