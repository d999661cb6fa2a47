package leastconn

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// sample is how many connections of a pool are recognized in the next count.
	sample = 1024
	// remembered is how much of what was learnt of the life of connections stays with each count.
	remembered = .9
)

// pool is a pool under lc or wlc, and what was learnt of its connections.
type pool struct {
	id        servicemodel.PoolID
	endpoints []netip.AddrPort
	weights   []float64
	units     []int     // that the endpoints have in the kernel
	debt      []float64 // units that rounding has kept from the endpoints
	random    bool      // connections are too short to be counted

	open        []float64           // connections, by endpoint
	seen, known map[uint32]struct{} // a sample of the connections, now and in the count before
	survived    int                 // how many of known are still open
	// time is for how long connections were watched, and ended how many of them ended meanwhile.
	time, ended float64
	passed      time.Duration // between the last two counts
}

// is takes the pool that the kernel holds. With a slow start, the weights are those of the moment.
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

// begin begins a count.
func (p *pool) begin() {
	p.open = make([]float64, len(p.endpoints))
	p.known, p.seen, p.survived = p.seen, make(map[uint32]struct{}, len(p.seen)), 0
}

// add counts a connection.
func (p *pool) add(slot int, id uint32) {
	p.open[slot]++
	if _, known := p.known[id]; known {
		p.survived++
	}
	if len(p.seen) < sample {
		p.seen[id] = struct{}{}
	}
}

// learn learns from a count how long connections live. passed is the time since the count before.
func (p *pool) learn(passed time.Duration) {
	before := float64(len(p.known))
	p.passed = passed
	if passed >= idle && 10*p.survived < len(p.known) {
		return // they ended before this count, and it is unknown when
	}
	ended := max(before-float64(p.survived), 0)
	p.time = remembered*p.time + passed.Seconds()*(before-ended/2)
	p.ended = remembered*p.ended + ended
}

// life returns how long a connection lives in the mean, 0 if that is unknown.
func (p *pool) life() time.Duration {
	return time.Duration(p.time / max(p.ended, 1) * float64(time.Second))
}

// pause returns the time until the next count. If connections end before a second count can find
// them, there are two counts a second, near one another, which tell whether that has changed.
func (p *pool) pause() time.Duration {
	life := p.life()
	if life < shortest && p.passed < idle {
		return idle
	}
	return min(max(life/perLife, shortest), longest)
}
