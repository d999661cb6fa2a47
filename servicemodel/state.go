package servicemodel

import (
	"iter"
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// State is what a program wants: services, their endpoints, and the node that balances them. It is
// an immutable value. The With methods return a new state that shares everything else; their cost
// does not grow with the number of services. Setting a value that is already there returns the
// state itself. The zero value is an empty state on the zero [Node].
//
// A state copies its inputs and outputs: modifying them later affects no state. To change a
// service, modify the copy and set it:
//
//	svc := state.Service(name)
//	svc.Scheduler = servicemodel.RoundRobin
//	state = state.WithService(svc)
type State struct {
	node      *Node // nil stands for the zero Node
	services  pmap.Map[Name, *Service, nameHash]
	endpoints pmap.Map[Name, []Endpoint, nameHash]
}

// WithNode returns s seen from node n.
func (s State) WithNode(n Node) State {
	if !s.viewpoint().equal(&n) {
		s.node = n.clone()
	}
	return s
}

// WithService returns s with the service set. It replaces a service of that name. A nil service
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

// WithEndpoints returns s with eps as all endpoints of a service. The service need not exist yet.
// An empty list removes the endpoints.
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

// Node returns the node of the state.
func (s State) Node() Node { return *s.viewpoint().clone() }

// viewpoint returns the state's own node, which must not leave the package.
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

// serviceOf and endpointsOf return the state's own values, which must not leave the package.
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

// Same reports whether s and o are the same state, in constant time. States that are not the same
// may still have equal contents.
func (s State) Same(o State) bool {
	return s.node == o.node && s.services.Same(o.services) && s.endpoints.Same(o.endpoints)
}

// Since compares s with an older one. It returns how many services came, went or changed
// their definition, how many services have other endpoints, and by how many the number of endpoints
// grew. The cost depends on the difference. Compared with the zero State, it counts everything. It
// ignores the node.
func (s State) Since(old State) (services, endpoints, growth int) {
	for range pmap.Diff(old.services, s.services, (*Service).equal) {
		services++
	}
	for c := range pmap.Diff(old.endpoints, s.endpoints, equalEndpoints) {
		endpoints++
		growth += len(c.New) - len(c.Old)
	}
	return services, endpoints, growth
}

// edit is a service whose definition or endpoints differ between two states.
type edit struct {
	name      Name
	service   *Service   // nil if the service does not exist
	redefined bool       // the definition differs, not only the endpoints
	endpoints []Endpoint // its endpoints in the newer state
}

// editsSince returns the differences from old to s, in the order of names. It skips shared
// contents.
func (s State) editsSince(old State) []edit {
	capacity := 1
	if old.services.Len() == 0 {
		capacity = s.services.Len()
	}
	services := make([]edit, 0, capacity)
	for c := range pmap.Diff(old.services, s.services, (*Service).equal) {
		services = append(services, edit{name: c.Key, service: c.New, redefined: true})
	}
	endpoints := make([]edit, 0, capacity)
	for c := range pmap.Diff(old.endpoints, s.endpoints, equalEndpoints) {
		endpoints = append(endpoints, edit{name: c.Key, endpoints: c.New})
	}
	edits := make([]edit, 0, max(len(services), len(endpoints)))
	for i, j := range align(services, endpoints, func(a, b edit) int {
		return a.name.Compare(b.name)
	}) {
		var e edit
		if i >= 0 {
			e = services[i]
		} else {
			e = endpoints[j]
			e.service = s.serviceOf(e.name)
		}
		if j >= 0 {
			e.endpoints = endpoints[j].endpoints
		} else {
			e.endpoints = s.endpointsOf(e.name)
		}
		edits = append(edits, e)
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
