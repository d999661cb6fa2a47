package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// Namespace is the namespace of all services of the program.
const Namespace = "loadbalancer"

// ModelName returns the service's name in the model.
func (s *Service) ModelName() servicemodel.Name {
	return servicemodel.Name{Namespace: Namespace, Name: s.Name}
}

func (s *Service) protocol() string { return cmp.Or(s.Protocol, "tcp") }

// protocols are the protocols by their names.
var protocols = map[string]servicemodel.Protocol{
	"tcp": servicemodel.TCP, "udp": servicemodel.UDP, "sctp": servicemodel.SCTP,
}

// ModelPort returns the one port of the service in the model.
func (s *Service) ModelPort() servicemodel.ServicePort {
	return servicemodel.ServicePort{Protocol: protocols[s.protocol()], Port: s.Port,
		EndPort: s.EndPort, TargetPort: s.TargetPort}
}

// key returns the key of the service's frontend at an address.
func (s *Service) key(a netip.Addr) servicemodel.FrontendKey {
	return servicemodel.FrontendKey{Addr: a, Protocol: protocols[s.protocol()], Port: s.Port,
		EndPort: s.EndPort}
}

// valueError says that the value of a field is wrong.
type valueError struct {
	field string
	err   error
}

func (e *valueError) Error() string { return e.field + ": " + e.err.Error() }

// Model returns the service in the model. The error names the field that has no meaning there.
func (s *Service) Model() (*servicemodel.Service, error) {
	if _, ok := protocols[s.protocol()]; !ok {
		return nil, &valueError{"protocol", errors.New("must be tcp, udp or sctp")}
	}
	m := &servicemodel.Service{
		Name: s.ModelName(), Ports: []servicemodel.ServicePort{s.ModelPort()},
		LoadBalancerSourceRanges: s.Sources, Prefer: s.Prefer, SlowStart: s.SlowStart,
		SessionAffinity: servicemodel.SessionAffinity{ClientIP: s.Affinity > 0,
			Timeout: s.Affinity, Bits4: uint8(min(s.AffinityIPv4, 255)),
			Bits6: uint8(min(s.AffinityIPv6, 255))},
	}
	if len(s.Denied) > 0 {
		m.Clients = []servicemodel.ClientRule{{Deny: s.Denied}}
	}
	for _, a := range s.Addresses {
		m.LoadBalancerIPs = append(m.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a})
	}
	var err error
	if s.Scheduler != "" {
		if m.Scheduler, err = servicemodel.ParseScheduler(s.Scheduler); err != nil {
			return nil, &valueError{"scheduler", err}
		}
	}

	if m.Forwarding, err = servicemodel.ParseForwarding(cmp.Or(s.Forwarding, "nat")); err != nil {
		return nil, &valueError{"forwarding", err}
	}
	m.Connections, err = servicemodel.ParseConnectionPolicy(cmp.Or(s.Connections, "leave"))
	if err != nil {
		return nil, &valueError{"connections", err}
	}
	m.SilentEndpoints, err = servicemodel.ParseSilentPolicy(cmp.Or(s.SilentEndpoints, "default"))
	if err != nil {
		return nil, &valueError{"silentEndpoints", err}
	}
	switch s.Masquerade {
	case "", "always":
	case "never":
		m.Masquerade = servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)
	default:
		return nil, &valueError{"masquerade", errors.New("must be always or never")}
	}

	return m, nil
}

// Endpoints returns the backends in the model. up says which of them are up. If no backend of a
// family can be used, the family's sorry servers are endpoints, too.
func (s *Service) Endpoints(up func(*Backend) bool) []servicemodel.Endpoint {
	var out []servicemodel.Endpoint
	for i := range s.Backends {
		b := &s.Backends[i]
		ep := s.endpoint(b.Address)
		ep.Zone = b.Zone
		switch {
		case !up(b):
			ep.Condition = servicemodel.NotReady
		case b.Drained():
			ep.Condition = servicemodel.Quiesced
		}

		if b.Weight != nil {
			ep.Weight = *b.Weight
		}
		out = append(out, ep)
	}

	for _, a := range s.SorryInUse(up) {
		out = append(out, s.endpoint(a))
	}
	return out
}

// SorryInUse returns the sorry servers that stand in, because no backend of their family is up.
func (s *Service) SorryInUse(up func(*Backend) bool) (out []netip.AddrPort) {
	for _, a := range s.Sorry {
		if !slices.ContainsFunc(s.Backends, func(b Backend) bool {
			return b.Address.Addr().Is4() == a.Addr().Is4() && !b.Drained() && up(&b)
		}) {
			out = append(out, a)
		}
	}

	return out
}

func (s *Service) endpoint(a netip.AddrPort) servicemodel.Endpoint {
	port := a.Port()
	if s.EndPort != 0 && s.TargetPort == 0 && port == s.Port {
		port = 0 // packets keep their ports
	}
	return servicemodel.Endpoint{Addr: a.Addr(), Ports: []servicemodel.EndpointPort{
		{Protocol: protocols[s.protocol()], Port: port}}}
}

// validateModel finds the values of a service that the model refuses. The state in which no backend
// is up has all endpoints, because it has all sorry servers, too.
func (s *Service) validateModel(src *source, path string) {
	m, err := s.Model()
	var value *valueError
	if errors.As(err, &value) {
		src.fail(path+"."+value.field, "%w", value.err)
		return
	}

	state := servicemodel.State{}.WithService(m).WithEndpoints(m.Name,
		s.Endpoints(func(*Backend) bool { return false }))
	for _, e := range joined(state.Validate()) {
		var field *servicemodel.FieldError
		if !errors.As(e, &field) {
			src.fail(path, "%w", e)
			continue
		}

		src.fail(path+s.fieldOf(field.Field), "%s: %s", field.Value, field.Reason)
	}
}

// fields maps the names of fields in the model and in refusals to the names in the file. A name
// precedes its prefixes.
var fields = [][2]string{{"loadBalancerIPs", "addresses"},
	{"loadBalancerSourceRanges", "sources"}, {"clients", "denied"},
	{"sessionAffinity.bits6", "affinityIPv6"}, {"sessionAffinity.bits", "affinityIPv4"},
	{"sessionAffinity", "affinity"}, {"connections", "connections"}, {"name", "name"},
	{"prefer", "prefer"}, {"slowStart", "slowStart"}, {"weights", "backends"},
	{"ports[0].endPort", "endPort"}, {"ports[0].targetPort", "targetPort"}}

// fieldOf returns the path, in a service, of the field from which a field of the model is made. A
// field without such an entry has the same name in the file.
func (s *Service) fieldOf(model string) string {
	var i int
	if _, err := fmt.Sscanf(model, "endpoints[%d]", &i); err == nil {
		if i < len(s.Backends) {
			return fmt.Sprintf(".backends[%d].address", i)
		}
		return fmt.Sprintf(".sorry[%d]", i-len(s.Backends))
	}

	for _, f := range fields {
		if strings.HasPrefix(model, f[0]) {
			return "." + f[1]
		}
	}

	return "." + model
}

// State returns the state in which some backends are up.
func (f *File) State(up func(*Service, *Backend) bool) (state servicemodel.State, err error) {
	state = state.WithNode(servicemodel.Node{Zone: f.Zone})
	for i := range f.Services {
		s := &f.Services[i]
		m, err := s.Model()
		if err != nil {
			return state, fmt.Errorf("service %s: %w", s.Name, err)
		}
		state = state.WithService(m).WithEndpoints(m.Name,
			s.Endpoints(func(b *Backend) bool { return up(s, b) }))
	}

	return state, nil
}

// Extremes returns states that can result from the checks. A kernel mechanism that can express
// these states can express every other such state. In them, each service has all its backends; no
// backends, so that its sorry servers are used; and, if it prefers a zone, the backends of the
// host's zone, and the backends elsewhere. A pool with fewer endpoints needs no more than the pool
// with all endpoints: its weights have no larger sum and no smaller common divisor. The model
// bounds pools that mix levels of nearness, and slow starts, by itself.
func (f *File) Extremes() ([]servicemodel.State, error) {
	sets := []func(near bool) bool{func(bool) bool { return true },
		func(bool) bool { return false }}
	if slices.ContainsFunc(f.Services, func(s Service) bool { return s.Prefer != "" }) {
		sets = append(sets, func(near bool) bool { return near },
			func(near bool) bool { return !near })
	}

	out := make([]servicemodel.State, len(sets))
	for i, up := range sets {
		var err error
		if out[i], err = f.State(func(s *Service, b *Backend) bool {
			return !s.checked(b) || up(b.Zone == f.Zone)
		}); err != nil {
			return nil, err
		}
	}

	return out, nil
}
