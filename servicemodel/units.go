package servicemodel

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// noUnit marks a position without a unit in [Pool.Units].
const noUnit = -1

// hashes reports whether the scheduler hashes clients to units.
func (p *Pool) hashes() bool {
	name, _, _ := p.Scheduler.Split()
	return name == SourceHash
}

// UnitsOf returns the units of a pool under [SourceHash], even if [Pool.Units] is nil.
func (p *Pool) UnitsOf() []int32 {
	if p.Units != nil {
		return p.Units
	}
	var l []int32
	for i, s := range p.Slots {
		for range s.Weight {
			l = append(l, int32(i))
		}
	}

	return l
}

// lay gives p, which hashes clients, scale units for each unit of weight, so that few clients move
// between like and p. Slots that are also in like keep their units.
//
// A client draws a unit in a level, from a power of two to the next. Below the highest level all
// positions have a unit, because a draw that misses there would favour the lower levels. If a unit
// is removed there, a unit of the highest level takes its place. In the highest level, a removed
// unit leaves a hole, and so moves no other clients. New units fill holes first.
//
// A pool of more than maxUnits gets no units. No backend has that number of elements.
func (p *Pool) lay(like *Pool, scale int) {
	left, missing := make([]int, len(p.Slots)), 0
	for i, s := range p.Slots {
		left[i] = scale * int(s.Weight)
		missing += left[i]
	}

	p.Units = nil
	if missing == len(p.Slots) && (like == nil || like.Units == nil) {
		return // by slots: [arrange] moves few
	}
	if missing > maxUnits {
		return
	}

	size := 1 << bits.Len(uint(missing-1))
	units := slices.Repeat([]int32{noUnit}, size)
	missing -= keepUnits(units, left, like, p)

	var free []int
	for at, u := range units[:size/2] {
		if u == noUnit {
			free = append(free, at)
		}
	}

	for at := size - 1; missing < len(free); at-- {
		if u := units[at]; u != noUnit {
			units[at] = noUnit
			left[u]++
			missing++
		}
	}

	for at := size / 2; len(free) < missing; at++ {
		if units[at] == noUnit {
			free = append(free, at)
		}
	}

	// In rounds from the back, so that most endpoints have units in the highest level.
	for at := missing - 1; at >= 0; {
		for i := len(left) - 1; i >= 0; i-- {
			if left[i] > 0 {
				units[free[at]] = int32(i)
				left[i]--
				at--
			}
		}
	}

	for units[len(units)-1] == noUnit {
		units = units[:len(units)-1]
	}
	if !slices.Equal(units, p.UnitsOf()) {
		p.Units = units
	}
}

// keepUnits copies the units of like to the units of p, as long as endpoints have units left. It
// returns the number of copied units.
func keepUnits(units []int32, left []int, like, p *Pool) (kept int) {
	if like == nil || like.hashes() != p.hashes() ||
		like.Units == nil && like.weights() > maxUnits {
		return 0
	}
	moved := map[netip.AddrPort]int{} // the slots of endpoints whose slot changed
	for i, s := range p.Slots {
		if i >= len(like.Slots) || like.Slots[i].Endpoint != s.Endpoint {
			moved[s.Endpoint] = i
		}
	}

	was := like.UnitsOf()
	for at, u := range was[:min(len(was), len(units))] {
		if u == noUnit {
			continue
		}
		i, e := int(u), like.Slots[u].Endpoint
		if i >= len(p.Slots) || p.Slots[i].Endpoint != e {
			found := false
			if i, found = moved[e]; !found {
				continue
			}
		}

		if left[i] > 0 {
			units[at] = int32(i)
			left[i]--
			kept++
		}
	}

	return kept
}

func (p *Pool) weights() (sum int) {
	for _, s := range p.Slots {
		sum += int(s.Weight)
	}
	return sum
}

// scale returns the number of units of each unit of weight.
func (p *Pool) scale() int {
	units := 0
	for _, u := range p.Units {
		if u != noUnit {
			units++
		}
	}

	return max(units/max(p.weights(), 1), 1)
}

// checkUnits returns an error if the units do not fit the slots.
func (p *Pool) checkUnits() error {
	if p.Units == nil {
		return nil
	}
	if p.Scheduler.Fed() {
		return p.checkShares()
	}
	left, scale, n := make([]int, len(p.Slots)), p.scale(), 0
	for i, s := range p.Slots {
		left[i] = scale * int(s.Weight)
		n += left[i]
	}

	size := 1 << bits.Len(uint(max(n, 1)-1))
	if !p.hashes() || len(p.Units) > size {
		return fmt.Errorf("new table: pool %v has units that its scheduler or weights do not allow",
			p.ID)
	}

	for at, u := range p.Units {
		if u == noUnit && at >= size/2 {
			continue
		}
		if u < 0 || int(u) >= len(left) || left[u] == 0 {
			return fmt.Errorf("new table: pool %v: unit %d has the wrong slot %d", p.ID, at, u)
		}
		left[u]--
		n--
	}

	if n != 0 {
		return fmt.Errorf("new table: pool %v lacks %d units", p.ID, n)
	}
	return nil
}
