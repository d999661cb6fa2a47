package kube

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kernlb/kernlb/servicemodel"
)

// translateEndpoints translates e; it returns nil if e is ignored or invalid. Each subset is the
// product of its addresses and ports. Addresses that are not ready become endpoints that do not
// serve.
func translateEndpoints(e *corev1.Endpoints, r *report) *slice {
	if _, ok := e.Labels[corev1.IsHeadlessService]; ok {
		return nil
	}
	checkName(r, e.Namespace, e.Name, validation.IsDNS1123Subdomain)
	out := &slice{service: servicemodel.Name{Namespace: e.Namespace, Name: e.Name}}
	for i := range e.Subsets {
		s := &e.Subsets[i]
		at := fmt.Sprintf("subsets[%d].", i)
		given := make([]discoveryv1.EndpointPort, len(s.Ports))
		for j := range s.Ports {
			p := &s.Ports[j]
			given[j] = discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port}
		}

		ports := endpointPorts(given, at+"ports", r, r.invalid)
		if len(ports) == 0 {
			continue
		}
		out.ports = append(out.ports, ports...)
		out.endpoints = appendAddresses(out.endpoints, s.Addresses, ports, servicemodel.Ready,
			at+"addresses", r)
		out.endpoints = appendAddresses(out.endpoints, s.NotReadyAddresses, ports,
			servicemodel.NotReady,
			at+"notReadyAddresses", r)
	}

	for i := range out.endpoints {
		f := servicemodel.FamilyOf(out.endpoints[i].Addr)
		if !slices.Contains(out.families, f) {
			out.families = append(out.families, f)
		}
	}

	return out
}

func appendAddresses(out []servicemodel.Endpoint, addresses []corev1.EndpointAddress,
	ports []servicemodel.EndpointPort,
	condition servicemodel.Condition, field string, r *report,
) []servicemodel.Endpoint {
	for i, a := range addresses {
		addr, err := parseRoutable(a.IP)
		if err != nil {
			r.invalid(fmt.Sprintf("%s[%d].ip", field, i), a.IP, "%v", err)
			continue
		}

		out = append(out, servicemodel.Endpoint{
			Addr: addr, Ports: ports, Condition: condition, Node: deref(a.NodeName, ""),
		})
	}

	return out
}
