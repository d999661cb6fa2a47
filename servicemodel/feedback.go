package servicemodel

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// This file assigns the units of pools under [LeastConn] and [WeightedLC] by [Endpoint.Share].
// Without shares, a pool has no units, and its endpoints are chosen by weight.

const (
	// leastFed is the smallest number of units of a pool with shares. fedUnits is the smallest
	// number of units per endpoint, on average.
	leastFed = 64
	fedUnits = 6
)

// Fed reports whether the scheduler uses shares that programs feed back ([Endpoint.Share]), as
// [LeastConn] and [WeightedLC] do.
func (s Scheduler) Fed() bool { return s == LeastConn || s == WeightedLC }

// FedUnits returns the number of units of a pool that has shares and this many endpoints: a power
// of two. It is 0 if backends cannot store that many units.
func FedUnits(endpoints int) int {
	n := max(leastFed, 1<<bits.Len(uint(fedUnits*endpoints-1)))
	if n > maxUnits {
		return 0
	}
	return n
}

// UnitCounts returns the number of units of each slot of p under [LeastConn] and [WeightedLC]. It
// is nil if no shares were fed back.
func (p *Pool) UnitCounts() []int {
	if p == nil || p.Units == nil || !p.Scheduler.Fed() {
		return nil
	}
	n := make([]int, len(p.Slots))
	for _, u := range p.Units {
		n[u]++
	}
	return n
}

// effective returns the weights with which slots are chosen.
func (p *Pool) effective() []uint16 {
	out, units := make([]uint16, len(p.Slots)), p.UnitCounts()
	for i, s := range p.Slots {
		switch {
		case units != nil:
			out[i] = uint16(units[i])
		case p.Scheduler.Even():
			out[i] = 1
		default:
			out[i] = s.Weight
		}
	}

	return out
}

// layShares gives p the units that implement shares: the shares in want, by endpoint, or else the
// shares of like. An endpoint without a share gets the average of the other endpoints, in
// proportion to weight. Shares that equal the weights are exact. Units that are also in like stay
// where they are.
func (p *Pool) layShares(want map[netip.AddrPort]int, like *Pool) {
	p.Units = nil
	if want == nil && like != nil {
		want = like.fedByEndpoint()
	}
	known, weights, total := 0, 0, 0
	counts := make([]int, len(p.Slots))
	for i, s := range p.Slots {
		counts[i] = 1
		if !p.Scheduler.Even() {
			counts[i] = int(s.Weight)
		}
		total += counts[i]
		if n := want[s.Endpoint]; n > 0 {
			known, weights = known+n, weights+counts[i]
		}
	}

	if known == 0 {
		return
	}
	shares, exact := make([]float64, len(p.Slots)), true
	for i, s := range p.Slots {
		if shares[i] = float64(want[s.Endpoint]); shares[i] == 0 {
			shares[i] = float64(known) * float64(counts[i]) / float64(weights)
		}
		exact = exact && shares[i] == float64(counts[i])
	}

	size := FedUnits(len(p.Slots))
	if exact && total <= maxUnits {
		size = total
	}
	if size == 0 {
		return
	}

	left := Apportion(shares, size)
	units := slices.Repeat([]int32{noUnit}, size)
	keepUnits(units, left, like, p)
	next := 0
	for at, u := range units {
		for ; u == noUnit && left[next] == 0; next++ {
		}
		if u == noUnit {
			units[at] = int32(next)
			left[next]--
		}
	}

	p.Units = units
}

// feed gives a new pool the shares of its candidates.
func (r *resolver) feed(p *Pool, candidates []candidate) {
	var want map[netip.AddrPort]int
	for i := range candidates {
		if c := &candidates[i]; c.endpoint.Share > 0 {
			if want == nil {
				want = map[netip.AddrPort]int{}
			}
			want[c.addr] = int(c.endpoint.Share)
		}
	}

	if want != nil {
		p.layShares(want, nil)
	}
}

// checkShares returns an error if the units of a pool with shares do not fit its slots.
func (p *Pool) checkShares() error {
	n := make([]int, len(p.Slots))
	for at, u := range p.Units {
		if u < 0 || int(u) >= len(n) {
			return fmt.Errorf("new table: pool %v: unit %d has the wrong slot %d", p.ID, at, u)
		}
		n[u]++
	}

	if slices.Contains(n, 0) || len(p.Units) > maxUnits {
		return fmt.Errorf("new table: pool %v: a slot has no unit, or there are too many", p.ID)
	}
	return nil
}

// fedByEndpoint returns the number of units of each endpoint, or nil.
func (p *Pool) fedByEndpoint() map[netip.AddrPort]int {
	units := p.UnitCounts()
	if units == nil {
		return nil
	}
	m := make(map[netip.AddrPort]int, len(units))
	for i, n := range units {
		m[p.Slots[i].Endpoint] = n
	}
	return m
}

// Apportion divides a number of units in proportion to shares, with at least one unit for each
// share (largest remainder method). There must be at least as many units as shares.
func Apportion(shares []float64, units int) []int {
	total := 0.
	for _, s := range shares {
		total += s
	}
	out, rest, order := make([]int, len(shares)), units, make([]int, len(shares))
	remainder := make([]float64, len(shares))
	for i, s := range shares {
		exact := s / total * float64(units)
		out[i], order[i] = max(int(exact), 1), i
		remainder[i] = exact - float64(out[i])
		rest -= out[i]
	}

	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(remainder[b], remainder[a])
	})
	for at := 0; rest > 0; at = (at + 1) % len(order) {
		out[order[at]]++
		rest--
	}

	for at := len(order) - 1; rest < 0; at = (at + len(order) - 1) % len(order) {
		if i := order[at]; out[i] > 1 {
			out[i]--
			rest++
		}
	}

	return out
}
