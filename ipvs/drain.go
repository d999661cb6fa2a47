package ipvs

import (
	"maps"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// draining are the destinations that have weight 0 until their connections have ended, with the
// times when that began, as far as this process knows.
type draining map[drainKey]time.Time

type drainKey struct {
	svc  ipvsnl.ServiceKey
	dest ipvsnl.DestinationKey
}

// note notes which destinations of a virtual server drain: from now on, unless they did before.
func (d draining) note(k ipvsnl.ServiceKey, s *server, now time.Time) {
	for key, dest := range s.dests {
		dk := drainKey{k, key}
		if dest.Weight != 0 {
			delete(d, dk)
		} else if _, ok := d[dk]; !ok {
			d[dk] = now
		}
	}
}

// readBack returns the destinations that drain after a reading. Virtual servers that go have none.
func (d draining) readBack(o *observed, now time.Time) draining {
	next := draining{}
	for k, s := range o.servers {
		if _, goes := slices.BinarySearchFunc(o.damage.servers, k,
			ipvsnl.ServiceKey.Compare); !goes {
			next.note(k, s, now)
		}
	}
	for dk := range next {
		if since, ok := d[dk]; ok {
			next[dk] = since
		}
	}
	return next
}

// servers returns the virtual servers whose destinations drain, after forgetting destinations that
// are gone or do not drain any more.
func (d draining) servers(o *observed) []ipvsnl.ServiceKey {
	maps.DeleteFunc(d, func(dk drainKey, _ time.Time) bool {
		s := o.servers[dk.svc]
		return s == nil || s.dests[dk.dest].Weight != 0
	})
	var l []ipvsnl.ServiceKey
	for dk := range d {
		l = append(l, dk.svc)
	}
	slices.SortFunc(l, ipvsnl.ServiceKey.Compare)
	return slices.Compact(l)
}

// drained returns the commands that delete those destinations of a virtual server that have no
// connections left, or have drained for as long as the limit.
func (d draining) drained(k ipvsnl.ServiceKey, dests []ipvsnl.ObservedDestination,
	limit time.Duration, now time.Time) (l []op) {
	for _, dest := range dests {
		since, ours := d[drainKey{k, dest.DestinationKey}]
		if ours && dest.Weight == 0 &&
			(now.Sub(since) >= limit || dest.ActiveConns+dest.InactiveConns == 0) {
			l = append(l, op{ipvsnl.CommandDelDestination, ipvsnl.Service{ServiceKey: k},
				dest.Destination})
		}
	}
	return l
}

// planDrained plans that destinations are deleted.
func (pl *planner) planDrained(ops []op) *plan {
	p := pl.newPlan()
	p.down = ops
	pl.planVersion(p)
	return p
}
