package kube

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kernlb/kernlb/servicemodel"
)

// slice is the translation of an EndpointSlice.
type slice struct {
	service   servicemodel.Name
	families  []servicemodel.Family       // of its addresses
	ports     []servicemodel.EndpointPort // of its endpoints
	endpoints []servicemodel.Endpoint
	triggered time.Time // the time at which its last change was triggered, or zero
}

// translateSlice translates s; it returns nil if s is ignored or invalid.
func translateSlice(s *discoveryv1.EndpointSlice, r *report) *slice {
	if _, ok := s.Labels[corev1.IsHeadlessService]; ok {
		return nil
	}
	checkName(r, s.Namespace, s.Name, validation.IsDNS1123Subdomain)
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		r.warn("metadata.labels["+discoveryv1.LabelServiceName+"]", "",
			"names no service, the slice is skipped")
		return nil
	}

	r.must("metadata.labels["+discoveryv1.LabelServiceName+"]", service,
		validation.IsValidLabelValue(service)...)
	var family servicemodel.Family
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
		family = servicemodel.IPv4
	case discoveryv1.AddressTypeIPv6:
		family = servicemodel.IPv6
	case discoveryv1.AddressTypeFQDN:
		return nil
	default:
		r.invalid("addressType", string(s.AddressType), "must be IPv4, IPv6 or FQDN")
		return nil
	}

	ports := endpointPorts(s.Ports, "ports", r, r.skip) // the API server accepts any number
	out := &slice{service: servicemodel.Name{Namespace: s.Namespace, Name: service},
		families: []servicemodel.Family{family}, ports: ports, triggered: triggeredAt(s)}
	for i := range s.Endpoints {
		a, ok := sliceAddr(s.Endpoints[i].Addresses, i, family, r)
		if !ok || len(ports) == 0 {
			continue
		}
		if out.endpoints == nil {
			out.endpoints = make([]servicemodel.Endpoint, 0, len(s.Endpoints)-i)
		}
		out.endpoints = append(out.endpoints, sliceEndpoint(&s.Endpoints[i], a, ports))
	}

	return out
}

// endpointPorts translates the ports in a field. It reports numbers out of range with wrong.
func endpointPorts(ports []discoveryv1.EndpointPort, field string, r *report,
	wrong func(field, value, format string, args ...any)) []servicemodel.EndpointPort {
	var out []servicemodel.EndpointPort
	seen := map[servicemodel.EndpointPort]int{}
	for i, p := range ports {
		at := field + "[" + strconv.Itoa(i) + "]."
		if p.Name == nil {
			r.warn(at+"name", "", "is missing, the port is skipped")
			continue
		}

		checkPortName(*p.Name, at+"name", r)
		port := servicemodel.EndpointPort{Name: *p.Name,
			Protocol: parseProtocol(deref(p.Protocol, ""), at+"protocol", r)}
		if p.Port == nil {
			r.warn(at+"port", "",
				"is missing, which means all ports and cannot be balanced, the port is skipped")
			continue
		}

		if *p.Port < 1 || *p.Port > 65535 {
			wrong(at+"port", itoa(*p.Port), "must be between 1 and 65535")
			continue
		}

		if first, ok := claim(seen, port, i); !ok {
			r.invalid(at+"name", *p.Name, "is the name of %s[%d] too, with the same protocol",
				field, first)
		}

		port.Port = uint16(*p.Port)
		out = append(out, port)
	}

	return out
}

// sliceAddr returns the address of endpoint i. Only the first address is used, because the API
// gives further addresses no meaning.
func sliceAddr(addresses []string, i int, family servicemodel.Family, r *report) (netip.Addr,
	bool) {
	if len(addresses) == 0 {
		r.skip(fmt.Sprintf("endpoints[%d].addresses", i), "", "must hold an address")
		return netip.Addr{}, false
	}

	a, err := parseRoutable(addresses[0])
	if err == nil && servicemodel.FamilyOf(a) != family {
		err = fmt.Errorf("must be an %s address, as addressType says", family)
	}
	if err != nil {
		r.invalid(fmt.Sprintf("endpoints[%d].addresses[0]", i), addresses[0], "%v", err)
	}
	return a, err == nil
}

func sliceEndpoint(e *discoveryv1.Endpoint, a netip.Addr,
	ports []servicemodel.EndpointPort) servicemodel.Endpoint {
	out := servicemodel.Endpoint{
		Addr:      a,
		Ports:     ports,
		Condition: conditionOf(&e.Conditions),
		Node:      deref(e.NodeName, ""),
		Zone:      deref(e.Zone, ""),
	}
	if e.Hints != nil {
		for _, n := range e.Hints.ForNodes {
			out.ForNodes = append(out.ForNodes, n.Name)
		}
		for _, z := range e.Hints.ForZones {
			out.ForZones = append(out.ForZones, z.Name)
		}
	}

	return out
}

// conditionOf returns kube-proxy's interpretation of the conditions: "serving" matters only
// together with "terminating", and both matter only if the endpoint is not ready.
func conditionOf(c *discoveryv1.EndpointConditions) servicemodel.Condition {
	serving, terminating := deref(c.Serving, true), deref(c.Terminating, false)
	switch {
	case deref(c.Ready, true):
		return servicemodel.Ready
	case serving && terminating:
		return servicemodel.Serving
	case terminating:
		return servicemodel.Terminating
	}

	return servicemodel.NotReady
}

func deref[T any](p *T, missing T) T {
	if p == nil {
		return missing
	}
	return *p
}
