package servicemodel

import (
	"iter"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// State is a program's desired state: services, their endpoints, and the node that balances them.
// It is an immutable value. The With methods return a new state that shares everything else; their
// cost does not grow with the number of services. Setting a value that the state already has
// returns the state itself. The zero value is an empty state on the zero [Node].
//
// A state copies its inputs and outputs: modifying them later affects no state. To change a
// service, modify the copy and set it:
//
//	svc := state.Service(name)
//	svc.Scheduler = servicemodel.RoundRobin
//	state = state.WithService(svc)
type State struct {
	node    *Node // nil stands for the zero Node
	entries pmap.Map[Name, entry, nameHash]
	// services counts the services, slowStarts the services with a slow start, and ejecting the
	// services with [SilentEject].
	services, slowStarts, ejecting int
}

// entry is the content of a state under one name. Either field may be missing.
type entry struct {
	service   *Service
	endpoints []endpoint
}

// WithNode returns s with n as its node.
func (s State) WithNode(n Node) State {
	if !s.viewpoint().equal(&n) {
		s.node = n.clone()
	}
	return s
}

// WithService returns s with the service set. It replaces a service with the same name. A nil
// service changes nothing.
func (s State) WithService(svc *Service) State {
	if svc == nil {
		return s
	}
	was := s.entries.At(svc.Name)
	if was.service != nil && was.service.equal(svc) {
		return s
	}
	return s.with(svc.Name, was, entry{svc.clone(), was.endpoints})
}

// WithoutService returns s without the service and its endpoints.
func (s State) WithoutService(n Name) State { return s.with(n, s.entries.At(n), entry{}) }

// WithEndpoints returns s with eps as all endpoints of a service. The service need not exist yet.
// An empty list removes the endpoints.
func (s State) WithEndpoints(n Name, eps []Endpoint) State {
	was := s.entries.At(n)
	if stores(was.endpoints, eps) {
		return s
	}
	return s.with(n, was, entry{was.service, storedEndpoints(was.endpoints, eps)})
}

// with returns s with the entry of n changed from was to is.
func (s State) with(n Name, was, is entry) State {
	count := func(svc *Service, by int) {
		if svc != nil {
			s.services += by
		}
		if svc != nil && svc.SlowStart > 0 {
			s.slowStarts += by
		}
		if svc != nil && svc.SilentEndpoints == SilentEject {
			s.ejecting += by
		}
	}

	count(was.service, -1)
	count(is.service, +1)
	if is.service == nil && len(is.endpoints) == 0 {
		s.entries = s.entries.Delete(n)
	} else {
		s.entries = s.entries.Set(n, is)
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

// Service returns the service of that name, or nil if there is none.
func (s State) Service(n Name) *Service {
	if svc := s.entries.At(n).service; svc != nil {
		return svc.clone()
	}
	return nil
}

// Endpoints returns the endpoints of a service.
func (s State) Endpoints(n Name) []Endpoint { return cloneEndpoints(s.entries.At(n).endpoints) }

// Peek returns the state's own service of that name, without a copy, and yields its endpoints.
// Other states share the service and the endpoints' lists, so they must not be modified. The
// service is nil if there is none.
func (s State) Peek(n Name) (*Service, iter.Seq[Endpoint]) {
	e := s.entries.At(n)
	return lend(e.service), eachEndpoint(e.endpoints)
}

// Services returns all services in the order of their names.
func (s State) Services() iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for svc := range s.sharedServices() {
			if !yield(svc.clone()) {
				return
			}
		}
	}
}

// sharedServices is [State.Services] without copies.
func (s State) sharedServices() iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for _, e := range s.entries.All() {
			if e.service != nil && !yield(e.service) {
				return
			}
		}
	}
}

// Tried returns s, except that services without a pool in t keep their definitions in before.
// Backends have not seen the pools of the new definitions, and may still refuse them.
func (s State) Tried(before State, t *Table) State {
	tried := s
	for c := range pmap.Diff(before.entries, s.entries, entry.equal) {
		balances := func(f *Frontend) bool { return f.Internal.Balances() || f.External.Balances() }
		if c.New.service != nil && !slices.ContainsFunc(t.FrontendsOfService(c.Key), balances) {
			tried = tried.WithService(c.Old.service)
		}
	}

	return tried
}

// Len returns the number of services.
func (s State) Len() int { return s.services }

// Ejecting returns the number of services whose silent endpoints are ejected ([SilentEject]).
func (s State) Ejecting() int { return s.ejecting }

// Same reports whether s and o are the same state, in constant time. States that are not the same
// may still have equal contents.
func (s State) Same(o State) bool {
	return s.node == o.node && s.entries.Same(o.entries)
}

// Since compares s with an older state. It returns the number of services that were added, removed
// or redefined, the number of services whose endpoints changed, and the increase in the number of
// endpoints. The cost depends on the difference. Compared with the zero State, it counts
// everything. It ignores the node.
func (s State) Since(old State) (services, endpoints, growth int) {
	for c := range pmap.Diff(old.entries, s.entries, entry.equal) {
		if !c.Old.service.equal(c.New.service) {
			services++
		}
		if !equalEndpoints(c.Old.endpoints, c.New.endpoints) {
			endpoints++
			growth += len(c.New.endpoints) - len(c.Old.endpoints)
		}
	}

	return services, endpoints, growth
}

func (e entry) equal(o entry) bool {
	return e.service.equal(o.service) && equalEndpoints(e.endpoints, o.endpoints)
}

// equal reports whether s and o mean the same in every field, or are both nil. Empty and nil lists
// are the same.
func (s *Service) equal(o *Service) bool {
	return s == o || s != nil && o != nil && s.Name == o.Name && s.equalLists(o) &&
		s.SessionAffinity == o.SessionAffinity &&
		s.InternalTrafficPolicy == o.InternalTrafficPolicy &&
		s.ExternalTrafficPolicy == o.ExternalTrafficPolicy && s.Prefer == o.Prefer &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && s.Masquerade == o.Masquerade &&
		s.Scheduler == o.Scheduler && s.SlowStart == o.SlowStart &&
		s.Forwarding == o.Forwarding &&
		s.Connections == o.Connections && s.SilentEndpoints == o.SilentEndpoints
}

func (s *Service) equalLists(o *Service) bool {
	return slices.Equal(s.Ports, o.Ports) && slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.HostIPs, o.HostIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.LoadBalancerSourceRanges, o.LoadBalancerSourceRanges) &&
		slices.Equal(s.MasqueradeIPs, o.MasqueradeIPs) &&
		slices.EqualFunc(s.Clients, o.Clients, ClientRule.equal)
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.OnlyFamily == o.OnlyFamily &&
		slices.Equal(n.Addresses, o.Addresses) &&
		n.NodePortAddresses.Primary == o.NodePortAddresses.Primary &&
		slices.Equal(n.NodePortAddresses.CIDRs, o.NodePortAddresses.CIDRs) &&
		n.LocalPods.equal(o.LocalPods) && slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs) &&
		n.MasqueradeAll == o.MasqueradeAll && n.MasqueradeMark == o.MasqueradeMark &&
		n.LocalhostNodePorts == o.LocalhostNodePorts &&
		n.MasqueradeNeighbours == o.MasqueradeNeighbours &&
		n.NoEndpoints == o.NoEndpoints && n.Forbidden == o.Forbidden
}

func (d PodDetector) equal(o PodDetector) bool {
	return d.Bridge == o.Bridge && d.InterfacePrefix == o.InterfacePrefix &&
		slices.Equal(d.CIDRs, o.CIDRs)
}

// States, tables and change sets share their common contents with each other, never with a caller.
// Values are copied when a caller passes them in and when a caller gets them. This file and
// endpoint.go contain the copying. Inside the package, shared values are read without a copy.

func (s *Service) clone() *Service {
	own := *s
	own.Ports = slices.Clone(s.Ports)
	own.ClusterIPs = slices.Clone(s.ClusterIPs)
	own.ExternalIPs = slices.Clone(s.ExternalIPs)
	own.HostIPs = slices.Clone(s.HostIPs)
	own.MasqueradeIPs = slices.Clone(s.MasqueradeIPs)
	own.LoadBalancerIPs = slices.Clone(s.LoadBalancerIPs)
	own.Clients = slices.Clone(s.Clients)
	for i := range own.Clients {
		own.Clients[i] = own.Clients[i].clone()
	}
	own.LoadBalancerSourceRanges = slices.Clone(s.LoadBalancerSourceRanges)
	return &own
}

func (n Node) clone() *Node {
	n.Addresses = slices.Clone(n.Addresses)
	n.NodePortAddresses.CIDRs = slices.Clone(n.NodePortAddresses.CIDRs)
	n.LocalPods.CIDRs = slices.Clone(n.LocalPods.CIDRs)
	n.ServiceCIDRs = slices.Clone(n.ServiceCIDRs)
	return &n
}
