package form

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// A pool whose scheduler is not random has its slots in a map of its scheduler, and not in the
// ordinary one, and its frontends are in no set that tells a class. A packet to it finds no slot in
// the ordinary map. Then the map of verdicts "-scheduled" leads it to the chain of its pool's
// scheduler and size. Packets to other services do not come so far.

// SchedulerWays are the ways in which the schedulers that nftables has choose endpoints.
var SchedulerWays = map[servicemodel.Scheduler]Feature{
	servicemodel.SchedulerDefault: AtRandom, servicemodel.Random: AtRandom,
	servicemodel.RoundRobin: InTurn, servicemodel.WeightedRR: InTurn,
	servicemodel.SourceHash: ByHash, servicemodel.Maglev: ByMaglev,
	servicemodel.LeastConn: AtRandom, servicemodel.WeightedLC: AtRandom,
}

// WayOf returns how a packet chooses among a pool's slots.
func WayOf(p *servicemodel.Pool) Feature {
	if p.Scheduler == servicemodel.SchedulerDefault {
		return AtRandom
	}
	name, _, _ := p.Scheduler.Split()
	return SchedulerWays[name]
}

// This file says which elements a pool has in the map of its scheduler, and which pool has given
// elements.

// EntryCount is the number of elements that a pool has in its map, and of holes between them.
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

// TakesRanges reports whether a range can have a pool: no hash chooses. The registers of the kernel
// have no room for the input of a hash beside the IPv6 key of a range.
func TakesRanges(p *servicemodel.Pool) bool {
	return p == nil || WayOf(p) != ByHash && WayOf(p) != ByMaglev
}

// RangePort returns the port of all endpoints in the pools of a range, 0 if packets keep their
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
