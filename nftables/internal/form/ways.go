package form

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// A pool whose scheduler is not random has its slots in a map of its scheduler, and not in the
// ordinary map, and its frontends are in no set of a class. A packet to such a pool finds no slot
// in the ordinary map. The map of verdicts "-scheduled" then sends it to the chain for the
// scheduler and size of the pool. Packets to other services find their endpoint before that.

// SchedulerWays are the ways in which the schedulers of nftables choose endpoints.
var SchedulerWays = map[servicemodel.Scheduler]Feature{
	servicemodel.SchedulerDefault: AtRandom, servicemodel.Random: AtRandom,
	servicemodel.RoundRobin: InTurn, servicemodel.WeightedRR: InTurn,
	servicemodel.SourceHash: ByHash, servicemodel.Maglev: ByMaglev,
	servicemodel.LeastConn: AtRandom, servicemodel.WeightedLC: AtRandom,
}

// WayOf returns the way in which a packet chooses among a pool's slots.
func WayOf(p *servicemodel.Pool) Feature {
	if p.Scheduler == servicemodel.SchedulerDefault {
		return AtRandom
	}
	name, _, _ := p.Scheduler.Split()
	return SchedulerWays[name]
}

// EntryCount is the number of elements that a pool has in its map, including holes between
// elements.
func EntryCount(p *servicemodel.Pool) int {
	switch {
	case WayOf(p) == ByMaglev:
		return p.MaglevSize()
	case p.Units != nil:
		return len(p.Units)
	case p.Scheduler.Even():
		return len(p.Slots)
	}

	return SlotCount(p)
}

// TakesRanges reports whether a range can have a pool: no hash may choose the endpoints. Next to
// the IPv6 key of a range, the registers of the kernel have no room for the input of a hash.
func TakesRanges(p *servicemodel.Pool) bool {
	return p == nil || WayOf(p) != ByHash && WayOf(p) != ByMaglev
}

// RangePort returns the port of all endpoints in the pools of a range, or 0 if packets keep their
// ports. It returns false if the ports differ. A nil pool has no endpoints.
func RangePort(internal, external *servicemodel.Pool) (port uint16, ok bool) {
	l := slices.Concat(EndpointsOf(internal), EndpointsOf(external))
	if len(l) == 0 {
		return 0, true
	}
	return l[0].Port(), !slices.ContainsFunc(l, func(ep netip.AddrPort) bool {
		return ep.Port() != l[0].Port()
	})
}
