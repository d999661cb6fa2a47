package config

import (
	"cmp"
	"errors"
	"net/netip"
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
	return servicemodel.ServicePort{Protocol: protocols[s.protocol()], Port: s.Port}
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
	used := map[bool]bool{}
	for i := range s.Backends {
		b := &s.Backends[i]
		ep := s.endpoint(b.Address)
		ep.Ready, ep.Quiesced, ep.Zone = up(b), b.Drained(), b.Zone
		if b.Weight != nil {
			ep.Weight = *b.Weight
		}
		if ep.Ready && !ep.Quiesced {
			used[b.Address.Addr().Is4()] = true
		}
		out = append(out, ep)
	}
	for _, a := range s.Sorry {
		if !used[a.Addr().Is4()] {
			ep := s.endpoint(a)
			ep.Ready = true
			out = append(out, ep)
		}
	}
	return out
}

func (s *Service) endpoint(a netip.AddrPort) servicemodel.Endpoint {
	return servicemodel.Endpoint{Addr: a.Addr(), Ports: []servicemodel.EndpointPort{
		{Protocol: protocols[s.protocol()], Port: a.Port()}}}
}

// validateModel finds the values of a service that the model refuses.
func (s *Service) validateModel(src *source, path string) {
	m, err := s.Model()
	var value *valueError
	if errors.As(err, &value) {
		src.fail(path+"."+value.field, "%w", value.err)
		return
	}
	state := servicemodel.State{}.WithService(m).WithEndpoints(m.Name,
		s.Endpoints(func(*Backend) bool { return true }))
	for _, e := range joined(state.Validate()) {
		var field *servicemodel.FieldError
		if !errors.As(e, &field) {
			src.fail(path, "%w", e)
			continue
		}
		src.fail(path+fieldName(field.Field), "%s: %s", field.Value, field.Reason)
	}
}

// fieldName returns the path in a service of the file from which a field of the model is made.
func fieldName(model string) string {
	for from, to := range map[string]string{
		"loadBalancerIPs": ".addresses", "loadBalancerSourceRanges": ".sources",
		"sessionAffinity.timeout": ".affinity", "sessionAffinity.bits4": ".affinityIPv4",
		"sessionAffinity.bits6": ".affinityIPv6", "connections": ".connections", "name": ".name",
		"endpoints": ".backends", "prefer": ".prefer", "slowStart": ".slowStart",
	} {
		if strings.HasPrefix(model, from) {
			return to
		}
	}
	return ""
}
