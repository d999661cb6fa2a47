package servicemodel

import (
	"net/netip"
	"slices"
)

// Selection reports, for one endpoint, which pools of a service port contain it, and why the others
// do not.
type Selection struct {
	Endpoint Endpoint
	// Target is the address and port of the endpoint for the service port. The port is 0 if the
	// endpoint has no port for it.
	Target netip.AddrPort
	// Cluster is the reason why the pool of all endpoints does not contain the endpoint, such as
	// "is not ready". Local is the reason for the pool of endpoints on this node. Each is empty if
	// the pool contains the endpoint.
	Cluster, Local string
	// Foreign says that the endpoint is ignored: its address is of the other family, or a different
	// entry with the same address and port is used instead.
	Foreign bool
}

// exclusion is the reason why an endpoint is not in a pool.
type exclusion uint8

// The reasons, in the order in which they are checked.
const (
	included exclusion = iota
	otherFamily
	otherPort
	repeated
	takesNoNew
	unready // and is not a terminating endpoint that still serves
	notHere
	lastResort
	hintedAwayNode
	hintedAwayZone
	notNeeded
)

func (x exclusion) String() string {
	return [...]string{
		otherFamily:    "is of the other family",
		otherPort:      "has no such port",
		repeated:       "is listed again",
		takesNoNew:     "is quiesced",
		unready:        "is not ready",
		notHere:        "is not on this node",
		lastResort:     "is terminating, others are ready",
		hintedAwayNode: "is hinted for other nodes",
		hintedAwayZone: "is hinted for other zones",
		notNeeded:      "is farther away, and enough nearer ones are ready",
	}[x]
}

// Select reports whether each endpoint of a service port in one family is used. The endpoints are
// in the order of the state's list. [Resolve] fills pools with the included endpoints. The result
// is empty if the state does not have the service port.
func Select(s State, port PortName, f Family) []Selection {
	p := s.port(port)
	if p == nil {
		return nil
	}
	eps := s.entries.At(port.Name).endpoints
	r := resolver{view: s.viewpoint().view()}
	candidates := r.candidates(p, f, eps)
	r.view.choose(candidates, s.entries.At(port.Name).service)
	chosen := make(map[*endpoint]candidate, len(candidates))
	for _, c := range candidates {
		chosen[c.endpoint] = c
	}
	all, own := make([]Selection, len(eps)), cloneEndpoints(eps)
	for i := range eps {
		c, isCandidate := chosen[&eps[i]]
		all[i] = Selection{Endpoint: own[i], Target: netip.AddrPortFrom(eps[i].Addr, 0)}
		out := included
		switch port, found := r.portOf(&eps[i], p); {
		case FamilyOf(eps[i].Addr) != f:
			out = otherFamily
		case !found:
			out = otherPort
		default:
			all[i].Target = netip.AddrPortFrom(eps[i].Addr, port)
			if !isCandidate {
				out = repeated
			}
		}

		if out != included {
			c.cluster, c.local = out, out
		}
		all[i].Cluster, all[i].Local = c.cluster.String(), c.local.String()
		all[i].Foreign = out == otherFamily || out == repeated
	}

	return all
}

// nearness returns the division of the traffic of a service port among levels, in one family. It is
// nil if no preference decides.
func (s State) nearness(port PortName, f Family) *nearness {
	p, svc := s.port(port), s.entries.At(port.Name).service
	if p == nil || svc.Prefer == "" {
		return nil
	}
	r := resolver{view: s.viewpoint().view()}
	candidates := r.candidates(p, f, s.entries.At(port.Name).endpoints)
	if r.view.hintsOf(candidates) != noHints {
		return nil
	}
	if n := r.view.nearnessOf(candidates, svc.Prefer); n.decides() {
		return &n
	}
	return nil
}

// port returns the service port of that name, or nil if the state has none.
func (s State) port(n PortName) *ServicePort {
	svc := s.entries.At(n.Name).service
	if svc == nil {
		return nil
	}
	i := slices.IndexFunc(svc.Ports, func(p ServicePort) bool {
		return p.Name == n.Port && p.Protocol == n.Protocol
	})
	if i < 0 {
		return nil
	}
	return &svc.Ports[i]
}
