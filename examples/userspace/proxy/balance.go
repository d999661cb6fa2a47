package proxy

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// cost is the cost of a target for the next connection of a client. The cheapest target gets the
// connection. Several cheapest targets take turns.
type cost func(t *target, client netip.AddrPort) float64

// costs has the costs of the schedulers that a pool supports. The schedulers of IPVS count only
// open connections.
var costs = map[servicemodel.Scheduler]cost{
	servicemodel.SchedulerDefault: inTurn,
	servicemodel.WeightedRR:       inTurn,
	servicemodel.RoundRobin:       inTurn,
	// Of several exponentially distributed numbers, each is the smallest with a probability
	// proportional to its rate.
	servicemodel.Random: func(t *target, _ netip.AddrPort) float64 {
		return rand.ExpFloat64() / t.weight
	},
	servicemodel.LeastConn: func(t *target, _ netip.AddrPort) float64 { return t.conns },
	servicemodel.WeightedLC: func(t *target, _ netip.AddrPort) float64 {
		return t.conns / t.weight
	},
	servicemodel.ShortestDelay: func(t *target, _ netip.AddrPort) float64 {
		return (t.conns + 1) / t.weight
	},
	servicemodel.NeverQueue: func(t *target, _ netip.AddrPort) float64 {
		if t.conns == 0 {
			return 0
		}
		return (t.conns + 1) / t.weight
	},
	servicemodel.Failover: func(t *target, _ netip.AddrPort) float64 { return -t.weight },
	servicemodel.Overflow: func(t *target, _ netip.AddrPort) float64 {
		if t.conns >= t.weight {
			return t.conns / t.weight
		}
		return -t.weight
	},
	servicemodel.SourceHash: rendezvous,
	servicemodel.Maglev:     rendezvous,
}

func inTurn(*target, netip.AddrPort) float64 { return 0 }

// rendezvous hashes a client with each target. A new endpoint takes its share of the clients. The
// clients of a removed endpoint are spread over all other endpoints. No other client moves.
func rendezvous(t *target, client netip.AddrPort) float64 {
	h := fnv.New64a()
	text, _ := t.endpoint.MarshalBinary() // never fails
	h.Write(text)
	text, _ = client.MarshalBinary()
	h.Write(text)
	bits := h.Sum64()
	for range 2 { // neighbouring clients differ in few bits of the sum
		bits = (bits ^ bits>>32) * 0xd6e8feb86659fd93
	}
	even := (float64(bits>>11) + 0.5) / (1 << 53) // in (0, 1)
	return -math.Log(even) / t.weight
}

// costOf returns the cost of a scheduler, and whether it is the same for all ports of a client. It
// returns nil for a scheduler that pools do not know.
func costOf(s servicemodel.Scheduler) (c cost, anyPort bool) {
	name, port, _ := s.Split()
	return costs[name], !port
}

// pool chooses among the endpoints of a pool of the table, in the order of their slots.
type pool struct {
	scheduler servicemodel.Scheduler
	targets   []*target
	cost      cost
	anyPort   bool
}

// target is an endpoint of a pool.
type target struct {
	endpoint netip.AddrPort
	weight   float64
	conns    float64 // open connections and UDP flows
	credit   float64 // of smooth weighted round robin
}

// updated returns the pool for a new version in the table. Remaining targets keep their credit,
// unless the scheduler differs.
func (p *pool) updated(to *servicemodel.Pool) *pool {
	next := &pool{scheduler: to.Scheduler, targets: make([]*target, len(to.Slots))}
	next.cost, next.anyPort = costOf(to.Scheduler)
	for i, s := range to.Slots {
		t := p.find(s.Endpoint)
		if t == nil {
			t = &target{endpoint: s.Endpoint}
		}
		t.weight = float64(s.Weight)
		if to.Scheduler == servicemodel.RoundRobin ||
			to.Scheduler == servicemodel.LeastConn {
			t.weight = 1
		}

		if p != nil && p.scheduler != to.Scheduler {
			t.credit = 0
		}
		next.targets[i] = t
	}

	return next
}

// find returns the target of an endpoint, or nil if the endpoint gets no new connections.
func (p *pool) find(endpoint netip.AddrPort) *target {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.targets, func(t *target) bool { return t.endpoint == endpoint })
	if i < 0 {
		return nil
	}
	return p.targets[i]
}

// at returns the endpoint with an address, or an invalid value if there is no such endpoint.
func (p *pool) at(a netip.Addr) (at netip.AddrPort) {
	for _, t := range p.targets {
		if e := t.endpoint; e.Addr() == a && (!at.IsValid() || e.Port() < at.Port()) {
			at = e
		}
	}

	return at
}

// pick returns the target for the next connection of a client, or nil if all were tried. It uses
// the smooth weighted round robin of nginx (ngx_http_upstream_get_peer): the turns of a heavy
// target are spread among the turns of the other targets.
func (p *pool) pick(client netip.AddrPort, tried []netip.AddrPort) (best *target) {
	if p.anyPort {
		client = netip.AddrPortFrom(client.Addr(), 0)
	}
	total, least := 0., 0.
	for _, t := range p.targets {
		if slices.Contains(tried, t.endpoint) {
			continue
		}
		t.credit += t.weight
		total += t.weight
		c := p.cost(t, client)
		if best == nil || c < least || c == least && t.credit > best.credit {
			best, least = t, c
		}
	}

	if best != nil {
		best.credit -= total
	}
	return best
}
