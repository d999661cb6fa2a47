package servicemodel

import (
	"iter"
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/persist"
)

// State is what a program wants: services, their endpoints, and the node they are seen from. It is
// an immutable value; the With methods return a new one that shares all the rest, at a cost that
// does not grow with the number of services. Setting what is already there returns the state
// itself. The zero value is an empty state on the zero [Node].
//
// What is given to a state is copied, and so is what is got from it: it can be modified afterwards
// without effect on any state. To change a service, modify the copy and set it:
//
//	svc := state.Service(name)
//	svc.Scheduler = servicemodel.RoundRobin
//	state = state.WithService(svc)
type State struct {
	node      *Node // nil stands for the zero Node
	services  persist.Map[Name, *Service, nameOrder]
	endpoints persist.Map[Name, []Endpoint, nameOrder]
}

// WithNode returns s seen from node n.
func (s State) WithNode(n Node) State {
	if !s.viewpoint().equal(&n) {
		s.node = n.clone()
	}
	return s
}

// WithService returns s with the service set; a service of that name is replaced. A nil service
// changes nothing.
func (s State) WithService(svc *Service) State {
	if svc == nil {
		return s
	}
	if old, ok := s.services.Get(svc.Name); !ok || !old.equal(svc) {
		s.services = s.services.Set(svc.Name, svc.clone())
	}
	return s
}

// WithoutService returns s without the service and its endpoints.
func (s State) WithoutService(n Name) State {
	s.services, s.endpoints = s.services.Delete(n), s.endpoints.Delete(n)
	return s
}

// WithEndpoints returns s with the endpoints of a service set, all of them. The service need not
// exist yet. An empty list removes them.
func (s State) WithEndpoints(n Name, eps []Endpoint) State {
	old, _ := s.endpoints.Get(n)
	switch {
	case len(eps) == 0:
		s.endpoints = s.endpoints.Delete(n)
	case !equalEndpoints(old, eps):
		s.endpoints = s.endpoints.Set(n, compactEndpoints(eps, old))
	}
	return s
}

// Node returns the node the state is seen from.
func (s State) Node() Node { return *s.viewpoint().clone() }

// viewpoint returns the state's own node, which nobody else may hold.
func (s State) viewpoint() *Node {
	if s.node == nil {
		return &Node{}
	}
	return s.node
}

// Service returns the service of that name, nil if there is none.
func (s State) Service(n Name) *Service {
	if svc, ok := s.services.Get(n); ok {
		return svc.clone()
	}
	return nil
}

// Endpoints returns the endpoints of a service.
func (s State) Endpoints(n Name) []Endpoint { return cloneEndpoints(s.endpointsOf(n)) }

// serviceOf and endpointsOf return the state's own values, which nobody else may hold.
func (s State) serviceOf(n Name) *Service {
	svc, _ := s.services.Get(n)
	return svc
}

func (s State) endpointsOf(n Name) []Endpoint {
	eps, _ := s.endpoints.Get(n)
	return eps
}

// Services returns all services in the order of their names.
func (s State) Services() iter.Seq[*Service] {
	return copies(s.services.All(), (*Service).clone)
}

// Len returns the number of services.
func (s State) Len() int { return s.services.Len() }

// Same reports whether s and o are one and the same state, which costs nothing to find out. States
// that are not the same may still mean the same.
func (s State) Same(o State) bool {
	return s.node == o.node && s.services.Same(o.services) && s.endpoints.Same(o.endpoints)
}

// edit is a service whose definition or endpoints differ between two states.
type edit struct {
	name      Name
	service   *Service   // nil if the service does not exist
	endpoints []Endpoint // those it has now
}

// editsSince returns what differs from old to s, in the order of names. What both share is not
// looked at.
func (s State) editsSince(old State) []edit {
	capacity := 1
	if old.services.Len() == 0 {
		capacity = s.services.Len()
	}
	services := make([]edit, 0, capacity)
	for c := range persist.Diff(old.services, s.services, (*Service).equal) {
		services = append(services, edit{name: c.Key, service: c.New})
	}
	endpoints := make([]edit, 0, capacity)
	for c := range persist.Diff(old.endpoints, s.endpoints, equalEndpoints) {
		endpoints = append(endpoints, edit{name: c.Key, endpoints: c.New})
	}
	edits := make([]edit, 0, max(len(services), len(endpoints)))
	for i, j := range align(services, endpoints, func(a, b edit) int {
		return a.name.Compare(b.name)
	}) {
		switch {
		case i < 0:
			e := endpoints[j]
			e.service = s.serviceOf(e.name)
			edits = append(edits, e)
		case j < 0:
			e := services[i]
			e.endpoints = s.endpointsOf(e.name)
			edits = append(edits, e)
		default:
			edits = append(edits, edit{name: services[i].name, service: services[i].service,
				endpoints: endpoints[j].endpoints})
		}
	}
	return edits
}

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() || a.Is4In6() {
		return IPv4
	}
	return IPv6
}

func uitoa(n uint16) string { return strconv.Itoa(int(n)) }
