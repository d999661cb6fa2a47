package proxy

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// schedulers are those that a pool knows: smooth weighted round robin, with weights or without.
var schedulers = []servicemodel.Scheduler{servicemodel.SchedulerDefault, servicemodel.RoundRobin,
	servicemodel.WeightedRR}

// pool chooses among the endpoints of a pool of the table, in the order of their slots.
type pool []*target

// target is an endpoint of a pool.
type target struct {
	endpoint netip.AddrPort
	weight   int
	credit   int // of smooth weighted round robin
}

// updated returns the pool for one of the table. Targets that stay keep their credit.
func (p pool) updated(to *servicemodel.Pool) pool {
	next := make(pool, len(to.Slots))
	for i, s := range to.Slots {
		t := p.find(s.Endpoint)
		if t == nil {
			t = &target{endpoint: s.Endpoint}
		}
		if t.weight = int(s.Weight); to.Scheduler == servicemodel.RoundRobin {
			t.weight = 1
		}
		next[i] = t
	}
	return next
}

// find returns the target of an endpoint, nil if new connections do not go there.
func (p pool) find(endpoint netip.AddrPort) *target {
	i := slices.IndexFunc(p, func(t *target) bool { return t.endpoint == endpoint })
	if i < 0 {
		return nil
	}
	return p[i]
}

// pick returns the target for the next connection, nil if all were tried. It is smooth weighted
// round robin, as nginx does it (ngx_http_upstream_get_peer): the turns of a heavy target are
// spread among those of the others.
func (p pool) pick(tried []netip.AddrPort) (best *target) {
	total := 0
	for _, t := range p {
		if slices.Contains(tried, t.endpoint) {
			continue
		}
		t.credit += t.weight
		total += t.weight
		if best == nil || t.credit > best.credit {
			best = t
		}
	}
	if best != nil {
		best.credit -= total
	}
	return best
}
