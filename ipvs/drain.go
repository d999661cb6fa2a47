package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// draining are the destinations with weight 0 whose connections have not ended, with the time at
// which draining began, as far as this process knows.
type draining map[drainKey]time.Time

type drainKey struct {
	svc  ipvsnl.ServiceKey
	dest ipvsnl.DestinationKey
}

// note records the draining destinations of a virtual server. A destination that did not drain
// before begins now.
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

// readBack returns the destinations that drain after a reading. Removed virtual servers have none.
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

// servers returns the virtual servers with draining destinations. It first forgets destinations
// that were removed or no longer drain.
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

// drained returns the commands that delete destinations of a virtual server: destinations without
// connections, and destinations that have drained for the limit. If of is the frontend of the
// virtual server, it also returns an event for each.
func (d draining) drained(k ipvsnl.ServiceKey, of *servicemodel.FrontendKey,
	dests []ipvsnl.ObservedDestination, limit time.Duration, now time.Time) (l []ipvsnl.Op,
	said []backends.Drained) {
	for _, dest := range dests {
		since, ours := d[drainKey{k, dest.DestinationKey}]
		open := dest.ActiveConns+dest.InactiveConns > 0
		if !ours || dest.Weight != 0 || open && now.Sub(since) < limit {
			continue
		}
		l = append(l, ipvsnl.DelDestination(k, dest.DestinationKey))
		if of != nil {
			said = append(said, backends.Drained{Deadline: open, Frontend: *of,
				Endpoint: netip.AddrPortFrom(dest.Addr, dest.Port)})
		}
	}

	return l, said
}
