package proxy

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// schedulers are those that a pool knows, without their options.
var schedulers = []servicemodel.Scheduler{servicemodel.SchedulerDefault, servicemodel.Random,
	servicemodel.RoundRobin, servicemodel.WeightedRR, servicemodel.LeastConn,
	servicemodel.WeightedLC, servicemodel.SourceHash, servicemodel.Maglev}

// pool chooses among the endpoints of a pool of the table.
type pool struct {
	scheduler servicemodel.Scheduler
	hashPort  bool
	targets   []*target // those that get new connections, in the order of their slots
	left      []*target // those that do not any more, and have connections
	next      int       // where the search for the target with the fewest connections begins
}

// target is an endpoint of a pool.
type target struct {
	endpoint netip.AddrPort
	weight   int
	conns    int // connections and flows that it has, those that begin among them
	credit   int // of smooth weighted round robin
}

// update makes p what a pool of the table says. Targets that stay keep what they count.
func (p *pool) update(to *servicemodel.Pool) {
	p.scheduler, p.hashPort, _ = to.Scheduler.Split()
	known := map[netip.AddrPort]*target{}
	for _, t := range slices.Concat(p.targets, p.left) {
		known[t.endpoint] = t
	}
	p.targets, p.left = make([]*target, len(to.Slots)), nil
	for i, s := range to.Slots {
		t := known[s.Endpoint]
		if t == nil {
			t = &target{endpoint: s.Endpoint}
		}
		delete(known, s.Endpoint)
		t.weight = int(s.Weight)
		p.targets[i] = t
	}
	for _, t := range known {
		if t.conns > 0 {
			p.left = append(p.left, t)
		}
	}
}

// find returns the target of an endpoint, nil if new connections do not go there.
func (p *pool) find(endpoint netip.AddrPort) *target {
	for _, t := range p.targets {
		if t.endpoint == endpoint {
			return t
		}
	}
	return nil
}

// pick returns the target for a client, nil if all were tried.
func (p *pool) pick(client netip.AddrPort, tried []netip.AddrPort) *target {
	list := p.targets
	if len(tried) > 0 {
		list = slices.DeleteFunc(slices.Clone(list), func(t *target) bool {
			return slices.Contains(tried, t.endpoint)
		})
	}
	if len(list) == 0 {
		return nil
	}
	switch p.scheduler {
	case servicemodel.Random:
		return random(list)
	case servicemodel.RoundRobin:
		return inTurn(list, func(*target) int { return 1 })
	case servicemodel.LeastConn:
		return p.fewest(list, func(*target) int { return 1 })
	case servicemodel.WeightedLC:
		return p.fewest(list, func(t *target) int { return t.weight })
	case servicemodel.SourceHash, servicemodel.Maglev:
		if !p.hashPort {
			client = netip.AddrPortFrom(client.Addr(), 0)
		}
		return rendezvous(list, client)
	}
	return inTurn(list, func(t *target) int { return t.weight })
}

// random returns a target by chance, by weight.
func random(list []*target) *target {
	total := 0
	for _, t := range list {
		total += t.weight
	}
	n := rand.IntN(total)
	for _, t := range list {
		if n -= t.weight; n < 0 {
			return t
		}
	}
	return nil // not reached
}

// inTurn is smooth weighted round robin, as nginx does it (ngx_http_upstream_get_peer): the turns
// of a heavy target are spread among those of the others.
func inTurn(list []*target, weight func(*target) int) *target {
	best, total := list[0], 0
	for _, t := range list {
		t.credit += weight(t)
		total += weight(t)
		if t.credit > best.credit {
			best = t
		}
	}
	best.credit -= total
	return best
}

// fewest returns the target with the fewest connections for its weight. Among equals they take
// turns.
func (p *pool) fewest(list []*target, weight func(*target) int) *target {
	p.next++
	var best *target
	for i := range list {
		t := list[(p.next+i)%len(list)]
		if best == nil || t.conns*weight(best) < best.conns*weight(t) {
			best = t
		}
	}
	return best
}

// rendezvous returns the target with the highest score for a client, weighted as in "Weighted
// Distributed Hash Tables" (Schindelhauer, Schomaker, 2005). Of an endpoint that leaves, only its
// own clients go elsewhere, and every host that runs this program chooses the same.
func rendezvous(list []*target, client netip.AddrPort) *target {
	var best *target
	highest := math.Inf(-1)
	for _, t := range list {
		if s := score(client, t); s > highest {
			best, highest = t, s
		}
	}
	return best
}

func score(client netip.AddrPort, t *target) float64 {
	h := fnv.New64a()
	for _, a := range []netip.AddrPort{client, t.endpoint} {
		ip := a.Addr().As16()
		_, _ = h.Write(ip[:]) // a hash takes everything
		_, _ = h.Write(binary.BigEndian.AppendUint16(nil, a.Port()))
	}
	// FNV leaves the upper bits of similar texts alike: the finalizer of MurmurHash3 does not.
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	unit := (float64(x>>11) + 0.5) / (1 << 53) // between 0 and 1, and neither
	return float64(t.weight) / -math.Log(unit)
}
