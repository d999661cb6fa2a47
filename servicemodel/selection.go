package servicemodel

import (
	"net/netip"
	"slices"
)

// Selection says what became of an endpoint on its way into the pools of a service port.
type Selection struct {
	Endpoint Endpoint
	// Target is where it is reached. Its port is 0 if the endpoint has none for the service port.
	Target netip.AddrPort
	// Cluster and Local say what keeps it out of the pools of [ScopeCluster] and [ScopeLocal].
	Cluster, Local Exclusion
}

// Exclusion is what keeps an endpoint out of a pool.
type Exclusion uint8

// The exclusions, in the order in which they are looked for.
const (
	Included       Exclusion = iota // nothing: it is in the pool
	OtherFamily                     // its address is of the other family
	OtherPort                       // it has no port of the service port's name and protocol
	Repeated                        // another entry of its address and port counts
	TakesNoNew                      // it is quiesced
	Unready                         // it is not ready, and does not serve while it terminates
	NotHere                         // it is not on this node ([ScopeLocal] only)
	LastResort                      // it is terminating, and others are ready
	HintedAwayNode                  // topology hints want it for other nodes
	HintedAwayZone                  // topology hints want it for other zones
)

// String returns what is said of such an endpoint, such as "is not ready".
func (x Exclusion) String() string {
	switch x {
	case Included:
		return "is used"
	case OtherFamily:
		return "is of the other family"
	case OtherPort:
		return "has no such port"
	case Repeated:
		return "is listed again"
	case TakesNoNew:
		return "is quiesced"
	case Unready:
		return "is not ready"
	case NotHere:
		return "is not on this node"
	case LastResort:
		return "is terminating, others are ready"
	case HintedAwayNode:
		return "is hinted for other nodes"
	case HintedAwayZone:
		return "is hinted for other zones"
	}
	return "exclusion " + uitoa(uint16(x))
}

// Select says what becomes of each endpoint of a service port in one family, in the order of the
// state. [Resolve] fills pools with those that are included. It returns none if the state does not
// have the service port.
func Select(s State, port PortName, f Family) []Selection {
	p := s.port(port)
	if p == nil {
		return nil
	}
	eps := s.endpointsOf(port.Name)
	r := resolver{view: s.viewpoint().view()}
	candidates := r.candidates(p, f, eps)
	r.view.choose(candidates)
	chosen := make(map[*Endpoint]candidate, len(candidates))
	for _, c := range candidates {
		chosen[c.endpoint] = c
	}
	e := excluder{view: &r.view, hints: r.view.hintsOf(candidates)}
	for i := range candidates {
		u := usabilityOf(candidates[i].endpoint)
		e.best = max(e.best, u)
	}
	all, own := make([]Selection, len(eps)), cloneEndpoints(eps)
	for i := range eps {
		c, isCandidate := chosen[&eps[i]]
		all[i] = Selection{Endpoint: own[i], Target: netip.AddrPortFrom(eps[i].Addr, 0)}
		out := Included
		switch target := eps[i].portFor(p); {
		case FamilyOf(eps[i].Addr) != f:
			out = OtherFamily
		case target == nil:
			out = OtherPort
		default:
			all[i].Target = netip.AddrPortFrom(eps[i].Addr, target.Port)
			if !isCandidate {
				out = Repeated
			}
		}
		all[i].Cluster, all[i].Local = out, out
		if out == Included {
			all[i].Cluster, all[i].Local = e.cluster(c), e.local(c)
		}
	}
	return all
}

// excluder says why a candidate was not chosen.
type excluder struct {
	view  *view
	hints hints
	best  usability
}

func (x *excluder) cluster(c candidate) Exclusion {
	switch u := usabilityOf(c.endpoint); {
	case c.cluster:
		return Included
	case u == unusable:
		return idle(c.endpoint)
	case u != x.best:
		return LastResort
	case x.hints == nodeHints:
		return HintedAwayNode
	}
	return HintedAwayZone
}

func (x *excluder) local(c candidate) Exclusion {
	switch {
	case c.local:
		return Included
	case usabilityOf(c.endpoint) == unusable:
		return idle(c.endpoint)
	case !x.view.local(c.endpoint):
		return NotHere
	}
	return LastResort
}

// idle says why an endpoint is unusable.
func idle(e *Endpoint) Exclusion {
	if e.Quiesced {
		return TakesNoNew
	}
	return Unready
}

// port returns the service port of that name, nil if the state has none.
func (s State) port(n PortName) *ServicePort {
	svc := s.serviceOf(n.Name)
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

// portFor returns the endpoint's port for a service port, nil if it has none.
func (e *Endpoint) portFor(p *ServicePort) *EndpointPort {
	for i := range e.Ports {
		if e.Ports[i].Name == p.Name && e.Ports[i].Protocol == p.Protocol {
			return &e.Ports[i]
		}
	}
	return nil
}
