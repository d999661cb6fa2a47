package servicemodel

import (
	"iter"
	"net/netip"
	"slices"
)

// endpoint is an [Endpoint] in a state. The endpoints of a service mostly differ in their addresses
// and nodes alone, so they share the rest.
type endpoint struct {
	Addr      netip.Addr
	Node      string
	*Endpoint // all other fields; never nil, and never changed
}

// nearby limits the number of endpoints with which an endpoint is compared to find equal fields:
// enough if the endpoints of a few zones alternate.
const nearby = 4

// storedEndpoints returns eps as a state stores them. They share what they have in common with each
// other and with old, the previous endpoints of the service.
func storedEndpoints(old []endpoint, eps []Endpoint) []endpoint {
	if len(eps) == 0 {
		return nil
	}
	own := make([]endpoint, len(eps))
	for i := range eps {
		e := &eps[i]
		own[i] = endpoint{Addr: e.Addr, Node: e.Node}
		like := func(o endpoint) bool { return o.alike(e) }
		known := own[max(i-nearby, 0):i]
		j := slices.IndexFunc(known, like)
		if j < 0 {
			from := max(min(i, len(old)-1)-nearby/2, 0)
			known = old[from:min(from+nearby, len(old))]
			j = slices.IndexFunc(known, like)
		}

		switch {
		case j >= 0:
			own[i].Endpoint = known[j].Endpoint
		case i > 0:
			own[i].Endpoint = e.rest(own[i-1].Endpoint)
		case len(old) > 0:
			own[i].Endpoint = e.rest(old[0].Endpoint)
		default:
			own[i].Endpoint = e.rest(&Endpoint{})
		}
	}

	return own
}

// rest returns a copy of e without address and node. It shares equal lists with a neighbour.
func (e *Endpoint) rest(neighbour *Endpoint) *Endpoint {
	own := *e
	own.Addr, own.Node = netip.Addr{}, ""
	own.Ports = cloneUnless(e.Ports, neighbour.Ports)
	own.ForNodes = cloneUnless(e.ForNodes, neighbour.ForNodes)
	own.ForZones = cloneUnless(e.ForZones, neighbour.ForZones)
	return &own
}

// cloneUnless returns known if it equals list, or else a copy of list.
func cloneUnless[T comparable](list, known []T) []T {
	if slices.Equal(list, known) {
		return known
	}
	return slices.Clone(list)
}

// alike reports whether e and o are equal in all fields except the address and the node.
func (e *Endpoint) alike(o *Endpoint) bool {
	return e == o || e.Condition == o.Condition && e.Zone == o.Zone && e.Weight == o.Weight &&
		e.Share == o.Share && slices.Equal(e.Ports, o.Ports) &&
		slices.Equal(e.ForNodes, o.ForNodes) && slices.Equal(e.ForZones, o.ForZones)
}

func equalEndpoints(a, b []endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] ||
		slices.EqualFunc(a, b, func(e, o endpoint) bool {
			return e.Addr == o.Addr && e.Node == o.Node && e.alike(o.Endpoint)
		}))
}

// stores reports whether a state that stores own stores eps.
func stores(own []endpoint, eps []Endpoint) bool {
	if len(own) != len(eps) {
		return false
	}
	for i := range eps {
		if e, o := &own[i], &eps[i]; e.Addr != o.Addr || e.Node != o.Node || !e.alike(o) {
			return false
		}
	}
	return true
}

// whole returns e with all its fields. Its lists belong to the state.
func (e *endpoint) whole() Endpoint {
	own := *e.Endpoint
	own.Addr, own.Node = e.Addr, e.Node
	return own
}

// eachEndpoint yields the endpoints. Their lists belong to the state.
func eachEndpoint(eps []endpoint) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range eps {
			lend(eps[i].Endpoint)
			if !yield(eps[i].whole()) {
				return
			}
		}
	}
}

// cloneEndpoints returns a deep copy of eps: no two of its lists share memory.
func cloneEndpoints(eps []endpoint) []Endpoint {
	if len(eps) == 0 {
		return nil
	}
	own, n := make([]Endpoint, len(eps)), 0
	for i := range eps {
		n += len(eps[i].Ports)
	}
	ports := make([]EndpointPort, 0, n)
	for i := range own {
		e := eps[i].whole()
		from := len(ports)
		ports = append(ports, e.Ports...)
		if e.Ports != nil {
			e.Ports = ports[from:len(ports):len(ports)]
		}
		e.ForNodes, e.ForZones = slices.Clone(e.ForNodes), slices.Clone(e.ForZones)
		own[i] = e
	}

	return own
}
