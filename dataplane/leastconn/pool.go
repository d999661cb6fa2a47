package leastconn

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// sample is the number of connections of a pool that the next count can recognise.
	sample = 1024
	// remembered is the weight that earlier observations of lifetimes retain at each count.
	remembered = .9
)

// pool is a pool under lc or wlc, and the observations of its connections.
type pool struct {
	id        servicemodel.PoolID
	endpoints []netip.AddrPort
	weights   []float64
	units     []int     // that the endpoints have in the kernel
	debt      []float64 // units that rounding has kept from the endpoints
	random    bool      // connections are too short to be counted

	open        []float64           // connections, by endpoint
	seen, known map[uint32]struct{} // a sample of the connections, now and in the count before
	survived    int                 // the number of connections in known that are still open
	// time is the total time for which connections were watched, and ended the number of
	// connections that ended during it.
	time, ended float64
	passed      time.Duration // between the last two counts
}

// is sets the pool to its definition in the kernel. During a slow start, the weights are the
// current ones.
func (p *pool) is(in *servicemodel.Pool) {
	if !slices.EqualFunc(p.endpoints, in.Slots, func(e netip.AddrPort, s servicemodel.Slot) bool {
		return e == s.Endpoint
	}) {
		p.debt = nil
	}
	p.endpoints, p.weights, p.units = nil, nil, in.UnitCounts()
	for _, s := range in.Slots {
		p.endpoints = append(p.endpoints, s.Endpoint)
		weight := 1.
		if in.Scheduler == servicemodel.WeightedLC {
			weight = float64(s.Weight)
		}
		p.weights = append(p.weights, weight)
	}
}

func (p *pool) begin() {
	p.open = make([]float64, len(p.endpoints))
	p.known, p.seen, p.survived = p.seen, make(map[uint32]struct{}, len(p.seen)), 0
}

func (p *pool) add(slot int, id uint32) {
	p.open[slot]++
	if _, known := p.known[id]; known {
		p.survived++
	}
	if len(p.seen) < sample {
		p.seen[id] = struct{}{}
	}
}

// learn updates the observed lifetimes after a count. passed is the time since the previous count.
func (p *pool) learn(passed time.Duration) {
	before := float64(len(p.known))
	p.passed = passed
	if passed >= idle && 10*p.survived < len(p.known) {
		return // they ended at an unknown time before this count
	}
	ended := max(before-float64(p.survived), 0)
	p.time = remembered*p.time + passed.Seconds()*(before-ended/2)
	p.ended = remembered*p.ended + ended
}

// life returns the mean lifetime of a connection, or 0 if it is unknown.
func (p *pool) life() time.Duration {
	return time.Duration(p.time / max(p.ended, 1) * float64(time.Second))
}

// pause returns the time until the next count. If connections end before a second count can find
// them, there are two counts in each second, close together, to detect whether lifetimes have
// changed.
func (p *pool) pause() time.Duration {
	life := p.life()
	if life < shortest && p.passed < idle {
		return idle
	}
	return min(max(life/perLife, shortest), longest)
}
