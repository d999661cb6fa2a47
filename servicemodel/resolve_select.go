package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
)

// candidate is an endpoint as one service port sees it: at one address and port.
type candidate struct {
	addr           netip.AddrPort
	endpoint       *Endpoint
	cluster, local exclusion // from the pool of all endpoints, and from that of this node
	weight         uint16    // in the cluster's pool; 0 means that of the endpoint
}

// usability orders endpoints: the higher, the more they are preferred.
type usability int

const (
	unusable    usability = iota
	terminating           // still serves; used if nothing better exists
	ready
)

func usabilityOf(e *Endpoint) usability {
	switch {
	case e.Quiesced:
		return unusable
	case e.Ready:
		return ready
	case e.Serving && e.Terminating:
		return terminating
	}
	return unusable
}

// candidates returns the endpoints of family f that have a port for p, sorted, each address and
// port once. If several endpoints have the same address and port, the most usable one counts, then
// one that is not terminating, then the first in the list. The result is valid until the next call.
func (r *resolver) candidates(p *ServicePort, f Family, eps []Endpoint) []candidate {
	found := slices.Grow(r.found[:0], len(eps))
	for i := range eps {
		e := &eps[i]
		if FamilyOf(e.Addr) != f {
			continue
		}
		if port, ok := r.portOf(e, p); ok {
			found = append(found, candidate{addr: netip.AddrPortFrom(e.Addr, port), endpoint: e})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.addr.Compare(b.addr) })
	r.found = found
	if len(found) < 2 {
		return found
	}
	unique := found[:1]
	for _, c := range found[1:] {
		last := &unique[len(unique)-1]
		switch {
		case last.addr != c.addr:
			unique = append(unique, c)
		case preferred(c.endpoint, last.endpoint):
			*last = c
		}
	}
	return unique
}

// portKey is what a service port and the endpoint port that serves it have in common.
type portKey struct {
	name     string
	protocol Protocol
}

// fewPorts is how many ports of an endpoint are compared one by one. More ports get an index:
// otherwise a service with thousands of ports would take time quadratic in their number.
const fewPorts = 16

// portOf returns the port of an endpoint that serves p. Endpoints of a service mostly share their
// lists of ports, and so the index.
func (r *resolver) portOf(e *Endpoint, p *ServicePort) (port uint16, ok bool) {
	if len(e.Ports) <= fewPorts {
		for _, q := range e.Ports {
			if q.Protocol == p.Protocol && q.Name == p.Name {
				return q.Port, true
			}
		}
		return 0, false
	}
	index := r.ports[&e.Ports[0]]
	if index == nil {
		index = make(map[portKey]uint16, len(e.Ports))
		for _, q := range e.Ports {
			index[portKey{q.Name, q.Protocol}] = q.Port
		}
		if r.ports == nil {
			r.ports = map[*EndpointPort]map[portKey]uint16{}
		}
		r.ports[&e.Ports[0]] = index
	}
	port, ok = index[portKey{p.Name, p.Protocol}]
	return port, ok
}

// preferred reports whether a, rather than b, counts for an address that both have. b must come
// before a in the list.
func preferred(a, b *Endpoint) bool {
	if c := cmp.Compare(usabilityOf(a), usabilityOf(b)); c != 0 {
		return c > 0
	}
	return b.Terminating && !a.Terminating
}

// choose says which candidates this node may use, and why not the others: for traffic to the whole
// cluster, and for traffic that must stay on the node. It reports whether there are any of each.
// The two fall back to terminating endpoints independently. Topology hints affect only the traffic
// to the whole cluster, and only ready endpoints (KEP-1669, KEP-2433, KEP-3015). If there are no
// hints, the service's preference takes their place.
func (v *view) choose(cs []candidate, svc *Service) (anyCluster, anyLocal bool) {
	best, bestLocal, hinted := unusable, unusable, false
	for i := range cs {
		e := cs[i].endpoint
		u := usabilityOf(e)
		best = max(best, u)
		if v.local(e) {
			bestLocal = max(bestLocal, u)
		}
		hinted = hinted || len(e.ForNodes)+len(e.ForZones) > 0
	}
	hints := noHints
	if hinted {
		hints = v.hintsOf(cs)
	}
	for i := range cs {
		c, e := &cs[i], cs[i].endpoint
		u := usabilityOf(e)
		if u == unusable {
			c.cluster = unready
			if e.Quiesced {
				c.cluster = takesNoNew
			}
			c.local = c.cluster
			continue
		}
		switch {
		case u != best:
			c.cluster = lastResort
		case u == ready && hints == nodeHints && !slices.Contains(e.ForNodes, v.name):
			c.cluster = hintedAwayNode
		case u == ready && hints == zoneHints && !slices.Contains(e.ForZones, v.zone):
			c.cluster = hintedAwayZone
		}
		switch {
		case !v.local(e):
			c.local = notHere
		case u != bestLocal:
			c.local = lastResort
		}
	}
	if svc.Prefer != "" && best == ready && hints == noHints {
		v.prefer(cs, svc.Prefer)
	}
	return best != unusable, bestLocal != unusable
}
