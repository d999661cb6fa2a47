// Package hnsfake is a Host Networking Service in memory, for tests. It refuses the calls that the
// real service is known or documented to refuse, and calls on which no caller should rely: load
// balancers at a taken place, unknown or foreign endpoints, endpoints in use, missing features, and
// invalid values.
//
// Like the real service it generates identities and writes them in capitals, whatever the caller
// wrote.
package hnsfake

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/servicemodel"
)

// Service is a Host Networking Service. [New] returns one.
type Service struct {
	mu       sync.Mutex
	features kernelspace.Features
	networks []kernelspace.Network
	eps      []kernelspace.Endpoint
	lbs      []kernelspace.LoadBalancer
	next     int
	calls    []string
	fault    func(call string) Fault
}

var _ kernelspace.HNS = (*Service)(nil)

// Fault is a way in which a call fails.
type Fault int

// The faults.
const (
	None     Fault = iota
	Refused        // the call does nothing and fails
	Lost           // the call does its work, and its answer is lost
	Missing        // the call fails with [kernelspace.ErrNotImplemented]
	Vanished       // the call fails with [kernelspace.ErrNotFound]
)

// ErrFault is the error of calls that failed because of a [Fault].
var ErrFault = errors.New("the RPC server is unavailable")

// AllFeatures are the features of Windows Server 2025.
var AllFeatures = kernelspace.Features{V2: true, RemoteSubnet: true, DSR: true,
	SessionAffinity: true, IPv6DualStack: true, ModifyLoadBalancer: true}

// New returns a service with networks.
func New(f kernelspace.Features, networks ...kernelspace.Network) *Service {
	return &Service{features: f, networks: networks}
}

// Fail calls a function before each call, which decides about its fault. Nil ends all faults.
func (s *Service) Fail(f func(call string) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Calls returns the calls since the last Calls that wrote or tried to write.
func (s *Service) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.calls
	s.calls = nil
	return l
}

// call locks the service, and executes a call. writes says that the call is recorded.
func call[T any](s *Service, name string, writes bool, do func() (T, error)) (answer T, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if writes {
		s.calls = append(s.calls, name)
	}
	fault := None
	if s.fault != nil {
		fault = s.fault(name)
	}
	switch fault {
	case Refused:
		err = ErrFault
	case Missing:
		err = kernelspace.ErrNotImplemented
	case Vanished:
		err = kernelspace.ErrNotFound
	default:
		if answer, err = do(); err == nil && fault == Lost {
			err = ErrFault
		}
	}

	if err != nil {
		var none T
		return none, fmt.Errorf("%s: %w", name, err)
	}

	return answer, nil
}

// id generates an identity.
func (s *Service) id() string {
	s.next++
	return fmt.Sprintf("ABCDEF00-0000-4000-8000-%012X", s.next)
}

// copied returns a deep copy.
func copied[T any](v T) T {
	text, err := json.Marshal(v)
	if err == nil {
		var out T
		if err = json.Unmarshal(text, &out); err == nil {
			return out
		}
	}

	panic(err) // these types always have JSON
}

// Features returns the features.
func (s *Service) Features() (kernelspace.Features, error) {
	return call(s, "features", false, func() (kernelspace.Features, error) {
		return s.features, nil
	})
}

// Network returns a network.
func (s *Service) Network(name string) (*kernelspace.Network, error) {
	return call(s, "network "+name, false, func() (*kernelspace.Network, error) {
		i := slices.IndexFunc(s.networks, func(n kernelspace.Network) bool {
			return n.Name == name
		})
		if i < 0 {
			return nil, kernelspace.ErrNotFound
		}
		return copied(&s.networks[i]), nil
	})
}

// SetNetworks replaces the networks. Endpoints of removed networks are also removed.
func (s *Service) SetNetworks(networks ...kernelspace.Network) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.networks = networks
	s.eps = slices.DeleteFunc(s.eps, func(e kernelspace.Endpoint) bool {
		return s.network(e.HostComputeNetwork) == nil
	})
}

func (s *Service) network(id string) *kernelspace.Network {
	for i := range s.networks {
		if strings.EqualFold(s.networks[i].ID, id) {
			return &s.networks[i]
		}
	}

	return nil
}

// IDs lists identities.
func (s *Service) IDs() (eps, lbs []string, err error) {
	_, err = call(s, "identities", false, func() (_ any, _ error) {
		for i := range s.eps {
			eps = append(eps, s.eps[i].ID)
		}
		for i := range s.lbs {
			lbs = append(lbs, s.lbs[i].ID)
		}
		return nil, nil
	})
	return eps, lbs, err
}

// Endpoints lists the endpoints of a network.
func (s *Service) Endpoints(network string) ([]kernelspace.Endpoint, error) {
	return call(s, "endpoints", false, func() (l []kernelspace.Endpoint, _ error) {
		for _, e := range s.eps {
			if strings.EqualFold(e.HostComputeNetwork, network) {
				l = append(l, copied(e))
			}
		}

		return l, nil
	})
}

// CreateEndpoint adds an endpoint.
func (s *Service) CreateEndpoint(e *kernelspace.Endpoint) (*kernelspace.Endpoint, error) {
	var addr string
	if len(e.IPConfigurations) > 0 {
		addr = e.IPConfigurations[0].IPAddress
	}
	return call(s, "create endpoint "+addr, true, func() (*kernelspace.Endpoint, error) {
		if err := s.checkEndpoint(e); err != nil {
			return nil, err
		}
		c := copied(*e)
		c.ID = s.id()
		s.eps = append(s.eps, c)
		return copied(&c), nil
	})
}

func (s *Service) checkEndpoint(e *kernelspace.Endpoint) error {
	n := s.network(e.HostComputeNetwork)
	switch {
	case n == nil:
		return fmt.Errorf("network %q: %w", e.HostComputeNetwork, kernelspace.ErrNotFound)
	case e.ID != "":
		return errors.New("the caller chose an identity")
	case e.SchemaVersion != kernelspace.SchemaVersion{Major: 2}:
		return fmt.Errorf("schema version %v", e.SchemaVersion)
	case len(e.IPConfigurations) == 0 || len(e.IPConfigurations) > 2:
		return fmt.Errorf("%d addresses", len(e.IPConfigurations))
	case e.Flags&^kernelspace.RemoteEndpoint != 0:
		return fmt.Errorf("flags %#x", e.Flags)
	}

	if _, err := net.ParseMAC(e.MacAddress); err != nil {
		return err
	}
	for _, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			return err
		}
		for _, o := range s.eps {
			if o.HostComputeNetwork == e.HostComputeNetwork && o.Remote() == e.Remote() &&
				slices.Contains(o.IPConfigurations, c) {
				return fmt.Errorf("address %v: %w", a, kernelspace.ErrExists)
			}
		}
	}

	if e.Remote() && strings.EqualFold(n.Type, "Overlay") &&
		!slices.ContainsFunc(e.Policies, isProvider) {
		return errors.New("a remote endpoint of an overlay network needs a provider address")
	}

	return nil
}

// isProvider reports whether a policy has a provider address.
func isProvider(p kernelspace.Policy) bool {
	var s struct{ ProviderAddress netip.Addr }
	return p.Type == "ProviderAddress" && json.Unmarshal(p.Settings, &s) == nil &&
		s.ProviderAddress.IsValid()
}

// DeleteEndpoint deletes an endpoint that no load balancer uses.
func (s *Service) DeleteEndpoint(id string) error {
	_, err := call(s, "delete endpoint "+id, true, func() (any, error) {
		i := s.endpoint(id)
		if i < 0 {
			return nil, kernelspace.ErrNotFound
		}
		for _, lb := range s.lbs {
			if slices.Contains(lb.HostComputeEndpoints, s.eps[i].ID) {
				return nil, fmt.Errorf("load balancer %s uses it", lb.ID)
			}
		}

		s.eps = slices.Delete(s.eps, i, i+1)
		return nil, nil
	})
	return err
}

// endpoint returns the index of an endpoint, -1 if there is none.
func (s *Service) endpoint(id string) int {
	return slices.IndexFunc(s.eps, func(e kernelspace.Endpoint) bool {
		return strings.EqualFold(e.ID, id)
	})
}

// LoadBalancers lists all load balancers.
func (s *Service) LoadBalancers() ([]kernelspace.LoadBalancer, error) {
	return call(s, "load balancers", false, func() ([]kernelspace.LoadBalancer, error) {
		return copied(s.lbs), nil
	})
}

// CreateLoadBalancer adds a load balancer.
func (s *Service) CreateLoadBalancer(lb *kernelspace.LoadBalancer) (*kernelspace.LoadBalancer,
	error) {
	return call(s, "create load balancer "+name(lb), true,
		func() (*kernelspace.LoadBalancer, error) {
			c, err := s.checked(lb, "")
			if err != nil {
				return nil, err
			}
			c.ID = s.id()
			s.lbs = append(s.lbs, c)
			return copied(&c), nil
		})
}

// ModifyLoadBalancer replaces the content of a load balancer.
func (s *Service) ModifyLoadBalancer(id string, lb *kernelspace.LoadBalancer) (
	*kernelspace.LoadBalancer, error) {
	return call(s, "modify load balancer "+name(lb), true,
		func() (*kernelspace.LoadBalancer, error) {
			i := s.loadBalancer(id)
			switch {
			case !s.features.ModifyLoadBalancer:
				return nil, kernelspace.ErrNotImplemented
			case i < 0:
				return nil, kernelspace.ErrNotFound
			}

			c, err := s.checked(lb, s.lbs[i].ID)
			if err != nil {
				return nil, err
			}
			if name(&s.lbs[i]) != name(lb) {
				return nil, fmt.Errorf("load balancer %s moves", name(&s.lbs[i]))
			}
			c.ID = s.lbs[i].ID
			s.lbs[i] = c
			return copied(&c), nil
		})
}

// DeleteLoadBalancer deletes a load balancer.
func (s *Service) DeleteLoadBalancer(id string) error {
	_, err := call(s, "delete load balancer "+id, true, func() (any, error) {
		i := s.loadBalancer(id)
		if i < 0 {
			return nil, kernelspace.ErrNotFound
		}
		s.lbs = slices.Delete(s.lbs, i, i+1)
		return nil, nil
	})
	return err
}

// loadBalancer returns the index of a load balancer, -1 if there is none.
func (s *Service) loadBalancer(id string) int {
	return slices.IndexFunc(s.lbs, func(lb kernelspace.LoadBalancer) bool {
		return strings.EqualFold(lb.ID, id)
	})
}

// name returns the place of a load balancer.
func name(lb *kernelspace.LoadBalancer) string {
	k, ok := lb.Key()
	if !ok {
		return "?"
	}
	return k.String()
}

// checked returns the load balancer as HNS keeps it. id is the identity of the load balancer that
// it replaces.
func (s *Service) checked(lb *kernelspace.LoadBalancer, id string) (kernelspace.LoadBalancer,
	error) {
	c := copied(*lb)
	key, ok := c.Key()
	switch {
	case !ok || key.Port == 0:
		return c, errors.New("not an address, TCP or UDP, and a port")
	case c.ID != "":
		return c, errors.New("the caller chose an identity")
	case c.SchemaVersion != kernelspace.SchemaVersion{Major: 2}:
		return c, fmt.Errorf("schema version %v", c.SchemaVersion)
	case len(c.HostComputeEndpoints) == 0:
		return c, errors.New("no endpoints")
	case key.Family() == servicemodel.IPv6 != (c.Flags&kernelspace.FlagIPv6 != 0):
		return c, errors.New("the flag IPv6 does not fit the address")
	}

	for _, o := range s.lbs {
		if name(&o) == name(&c) && o.ID != id {
			return c, fmt.Errorf("%v: %w", key, kernelspace.ErrExists)
		}
	}

	dsr, ipv6 := c.Flags&kernelspace.FlagDSR != 0, c.Flags&kernelspace.FlagIPv6 != 0
	const keptExternal = kernelspace.PortPreserveDIP | kernelspace.PortVIPExternalIP
	switch m := &c.PortMappings[0]; {
	case m.InternalPort == 0:
		return c, errors.New("no internal port")
	case c.Flags&^(kernelspace.FlagDSR|kernelspace.FlagIPv6) != 0, m.Flags > 31:
		return c, fmt.Errorf("flags %#x %#x", c.Flags, m.Flags)
	case dsr && !s.features.DSR:
		return c, errors.New("no direct server return")
	case ipv6 && !s.features.IPv6DualStack:
		return c, errors.New("no IPv6")
	case m.DistributionType > kernelspace.DistributeSourceIP,
		m.DistributionType != 0 && !s.features.SessionAffinity:
		return c, fmt.Errorf("distribution %d", m.DistributionType)
	case m.Flags&keptExternal == keptExternal && !dsr:
		return c, errors.New("the destination is kept without direct server return")
	}

	return c, s.checkEndpoints(&c, key.Family())
}

// checkEndpoints requires that all endpoints exist on one network and have addresses of the family,
// and that an overlay network has the source VIP.
func (s *Service) checkEndpoints(c *kernelspace.LoadBalancer, f servicemodel.Family) error {
	seen := map[string]bool{}
	var n *kernelspace.Network
	for i, id := range c.HostComputeEndpoints {
		at := s.endpoint(id)
		if at < 0 || seen[strings.ToLower(id)] {
			return fmt.Errorf("endpoint %s: %w", id, kernelspace.ErrNotFound)
		}
		seen[strings.ToLower(id)] = true
		e := &s.eps[at]
		c.HostComputeEndpoints[i] = e.ID
		if !slices.ContainsFunc(e.IPConfigurations, func(c kernelspace.IPConfig) bool {
			a, err := netip.ParseAddr(c.IPAddress)
			return err == nil && servicemodel.FamilyOf(a) == f
		}) {
			return fmt.Errorf("endpoint %s has no %v address", id, f)
		}

		of := s.network(e.HostComputeNetwork)
		if n != nil && n != of {
			return errors.New("endpoints of two networks")
		}
		n = of
	}

	if strings.EqualFold(n.Type, "Overlay") {
		if _, err := netip.ParseAddr(c.SourceVIP); err != nil {
			return fmt.Errorf("source VIP: %w", err)
		}
	}

	return nil
}
