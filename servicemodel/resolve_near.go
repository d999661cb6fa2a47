package servicemodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// This file prefers near endpoints: by topology hints, or by the preference of the service.

// hints is the kind of topology hints that a service port follows.
type hints int

const (
	noHints hints = iota
	nodeHints
	zoneHints
)

// hintsOf returns the kind of hints to follow. Every ready endpoint must have hints of this kind,
// and at least one hint must name this node (or its zone). Hints for nodes take precedence over
// hints for zones. A single ready endpoint without hints switches that kind off.
func (v *view) hintsOf(cs []candidate) hints {
	nodes, zones := v.name != "", v.zone != ""
	sameNode, sameZone := false, false
	for i := range cs {
		e := cs[i].endpoint
		if usabilityOf(e) != ready {
			continue
		}
		nodes = nodes && len(e.ForNodes) > 0
		zones = zones && len(e.ForZones) > 0
		if !nodes && !zones {
			return noHints
		}
		sameNode = sameNode || nodes && slices.Contains(e.ForNodes, v.name)
		sameZone = sameZone || zones && slices.Contains(e.ForZones, v.zone)
	}

	switch {
	case nodes && sameNode:
		return nodeHints
	case zones && sameZone:
		return zoneHints
	}

	return noHints
}

// Values of [Service.Prefer].
const (
	preferNode = "node"
	preferZone = "zone"
)

// level is the distance of an endpoint. The endpoints of a service port are in three levels.
type level int

const (
	onNode level = iota // on this node; empty if the service prefers the zone
	inZone              // in this node's zone, and not in the first level
	remote              // all other endpoints
	levels
)

func (v *view) levelOf(e *endpoint, prefer string) level {
	switch here := v.local(e); {
	case here && prefer == preferNode:
		return onNode
	case here || v.zone != "" && e.Zone == v.zone:
		return inZone
	}

	return remote
}

// nearness is the division of the traffic of a service port among levels.
type nearness [levels]struct {
	all, ready int // endpoints, except terminating ones
	share      int // in percent
}

// nearnessOf divides the traffic among levels by the rule of Envoy's priority levels. A level is
// healthy as long as at least 10/14 of its endpoints are ready. With fewer, its traffic shrinks in
// proportion, and the rest is sent to the next levels. If no level is left, the shares grow in
// proportion. Percentages are rounded down, and the first level gets the remainder.
func (v *view) nearnessOf(cs []candidate, prefer string) (n nearness) {
	for i := range cs {
		e := cs[i].endpoint
		u := usabilityOf(e)
		l := &n[v.levelOf(e, prefer)]
		if u == ready {
			l.ready++
		}
		if u != terminating && e.Condition != Terminating {
			l.all++
		}
	}

	var healthy [levels]int
	total, first := 0, level(-1)
	for i, l := range n {
		if l.ready == 0 {
			continue
		}
		healthy[i] = min(max(l.ready*overprovision/l.all, 1), 100)
		total += healthy[i]
		if first < 0 {
			first = level(i)
		}
	}

	left := 100
	for i := range n {
		if healthy[i] > 0 {
			n[i].share = min(left, healthy[i]*100/min(total, 100))
			left -= n[i].share
		}
	}

	if first >= 0 {
		n[first].share += left
	}
	return n
}

// overprovision is the percentage of a level's traffic that its endpoints can serve at once
// (overprovisioning_factor of Envoy).
const overprovision = 140

// decides reports whether a level has ready endpoints.
func (n *nearness) decides() bool {
	return n[onNode].ready+n[inZone].ready+n[remote].ready > 0
}

// String returns "this node 70 % (2 of 4 ready), its zone 30 % (3 of 3 ready)".
func (n *nearness) String() string {
	var parts []string
	for i, name := range [levels]string{"this node", "its zone", "elsewhere"} {
		if l := n[i]; l.all > 0 {
			parts = append(parts, fmt.Sprintf("%s %d %% (%d of %d ready)", name, l.share, l.ready,
				l.all))
		}
	}

	return strings.Join(parts, ", ")
}

// prefer gives the chosen candidates, which are ready, weights according to their levels. It drops
// the candidates whose level gets no traffic. Within a level, traffic follows the weights of the
// endpoints.
//
// Under [SourceHash] the weights add up to nearly the same sum, whatever endpoints are ready. So
// few clients move when some endpoints fail.
func (v *view) prefer(cs []candidate, svc *Service) {
	prefer := svc.Prefer
	d := division{view: v, prefer: prefer, near: v.nearnessOf(cs, prefer)}
	var all, divisor uint64
	for i := range cs {
		c := &cs[i]
		l := v.levelOf(c.endpoint, prefer)
		if c.cluster == included && d.near[l].share == 0 {
			c.cluster = notNeeded
		}
		if c.cluster == included {
			w := uint64(max(c.endpoint.Weight, 1))
			d.sums[l] += w
			all, divisor = all+w, gcd(divisor, w)
		}
	}

	var units uint64
	switch {
	case (&Pool{Scheduler: svc.Scheduler}).hashes():
		units = uint64(cmp.Or(maglevSize(len(cs)), maxUnits))
	case slices.Contains(d.sums[:], all):
		return // one level has all traffic, so the weights of the endpoints are right
	default:
		most := min(nearUnits*all/divisor, uint64(max(maxUnits-len(cs), 1)))
		units = d.units(cs, most)
	}

	for i := range cs {
		if c := &cs[i]; c.cluster == included {
			w, of := d.weigh(c, units)
			c.weight = uint16(max((w+of/2)/of, 1))
		}
	}
}

// division divides units of weight among candidates.
type division struct {
	*view
	prefer string
	near   nearness
	sums   [levels]uint64 // of the weights of the endpoints
}

// weigh returns the number of units that belong to a candidate, as a fraction.
func (d *division) weigh(c *candidate, units uint64) (w, of uint64) {
	l := d.levelOf(c.endpoint, d.prefer)
	return units * uint64(d.near[l].share) * uint64(max(c.endpoint.Weight, 1)), 100 * d.sums[l]
}

// units returns the smallest number of units that gives all candidates whole numbers, or most if
// that is less. The share of a level then deviates by less than 1 % of all traffic, except in a
// pool that would need more than maxUnits.
func (d *division) units(cs []candidate, most uint64) uint64 {
	common, divisor := uint64(1), uint64(0)
	for _, s := range d.sums {
		if s > 0 {
			common *= s / gcd(common, s)
		}
		if common > 1<<32 {
			return most
		}
	}

	common *= 100
	for i := range cs {
		if cs[i].cluster == included {
			w, of := d.weigh(&cs[i], common)
			divisor = gcd(divisor, w/of)
		}
	}

	return min(common/divisor, most)
}

const (
	// nearUnits limits the weights of a pool whose endpoints are preferred by level: the number of
	// units for each unit of weight of the endpoints.
	nearUnits = 64
	// maxUnits limits the sum of the weights of a pool that the model computes. Backends may need
	// an element for each unit.
	maxUnits = math.MaxUint16
)
