package kube

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of an EndpointSlice.
const (
	maxEndpoints  = 1000
	maxAddresses  = 100 // of an endpoint
	maxSlicePorts = 20000
	maxHints      = 8 // of an endpoint, of each kind
	maxTopology   = 16
)

// refuseSlice reports faults for which an API server would refuse an EndpointSlice.
func (r *report) refuseSlice(s *discoveryv1.EndpointSlice) {
	r.refuseMeta(&s.ObjectMeta, apivalidation.NameIsDNSSubdomain)
	r.atMost("ports", len(s.Ports), maxSlicePorts)
	names := map[string]int{}
	for i := range s.Ports {
		p, at := &s.Ports[i], fmt.Sprintf("ports[%d].", i)
		if first, ok := claim(names, deref(p.Name, ""), i); !ok {
			r.must(at+"name", deref(p.Name, ""), fmt.Sprintf("is the name of ports[%d] too", first))
		}
		if len(deref(p.Name, "")) > 0 {
			r.must(at+"name", *p.Name, validation.IsDNS1123Label(*p.Name)...)
		}
		if !r.mentions(at + "protocol") {
			parseProtocol(deref(p.Protocol, ""), at+"protocol", r)
		}
		r.refuseAppProtocol(at, p.AppProtocol)
	}

	if !r.atMost("endpoints", len(s.Endpoints), maxEndpoints) {
		return
	}
	for i := range s.Endpoints {
		r.refuseEndpoint(&s.Endpoints[i], s.AddressType, i)
	}
}

// atMost reports a list with more than most items.
func (r *report) atMost(at string, items, most int) bool {
	if items > most {
		r.invalid(at, "", "has %d items, may have %d at most", items, most)
	}
	return items <= most
}

// refuseEndpoint checks the i-th endpoint of a slice. For most endpoints it builds no path, because
// their address and node are valid.
func (r *report) refuseEndpoint(e *discoveryv1.Endpoint, kind discoveryv1.AddressType, i int) {
	node := e.NodeName == nil || len(validation.IsDNS1123Subdomain(*e.NodeName)) == 0
	if len(e.Addresses) == 1 && plainAddress(e.Addresses[0], kind) && node && e.Hostname == nil &&
		len(e.DeprecatedTopology) == 0 && e.Hints == nil {
		return
	}

	at := fmt.Sprintf("endpoints[%d].", i)
	if len(e.Addresses) == 0 {
		r.must(at+"addresses", "", "must hold an address")
	}
	r.atMost(at+"addresses", len(e.Addresses), maxAddresses)
	for i, a := range e.Addresses {
		r.refuseEndpointAddress(a, kind, fmt.Sprintf("%saddresses[%d]", at, i))
	}
	r.refuseHostAndNode(at, e.Hostname, e.NodeName)
	r.atMost(at+"deprecatedTopology", len(e.DeprecatedTopology), maxTopology)
	r.refuse(metavalidation.ValidateLabels(e.DeprecatedTopology, asPath(at+"deprecatedTopology")))
	if e.Hints == nil {
		return
	}
	zones := make([]string, len(e.Hints.ForZones))
	for i, z := range e.Hints.ForZones {
		zones[i] = z.Name
	}
	r.refuseHints(zones, at+"hints.forZones", validation.IsValidLabelValue)
	nodes := make([]string, len(e.Hints.ForNodes))
	for i, n := range e.Hints.ForNodes {
		nodes[i] = n.Name
	}
	r.refuseHints(nodes, at+"hints.forNodes", validation.IsDNS1123Subdomain)
}

// plainAddress reports whether an address is certainly valid.
func plainAddress(a string, kind discoveryv1.AddressType) bool {
	addr, err := parseRoutable(a)
	return err == nil && !addr.Is4In6() && addr.String() == a &&
		kind == addressTypes[addr.Is4()]
}

var addressTypes = map[bool]discoveryv1.AddressType{true: discoveryv1.AddressTypeIPv4,
	false: discoveryv1.AddressTypeIPv6}

// refuseEndpointAddress checks one address of an endpoint. Only the first address is used, but all
// must be valid.
func (r *report) refuseEndpointAddress(a string, kind discoveryv1.AddressType, at string) {
	switch kind {
	case discoveryv1.AddressTypeFQDN:
		r.refuse(validation.IsFullyQualifiedDomainName(asPath(at), a))
		return
	case discoveryv1.AddressTypeIPv6:
		r.refuse(validation.IsValidIP(asPath(at), a))
	default:
		r.refuseAddress(at, a)
	}

	addr, err := parseRoutable(a)
	if err == nil && addr.Is4() != (kind == discoveryv1.AddressTypeIPv4) {
		err = fmt.Errorf("must be an %s address, as addressType says", kind)
	}
	if err != nil {
		r.must(at, a, err.Error())
	}
}

func (r *report) refuseHints(names []string, at string, ok func(string) []string) {
	if !r.atMost(at, len(names), maxHints) {
		return
	}
	seen := map[string]int{}
	for i, n := range names {
		field := fmt.Sprintf("%s[%d].name", at, i)
		r.must(field, n, ok(n)...)
		if first, ok := claim(seen, n, i); !ok {
			r.must(field, n, fmt.Sprintf("is %s[%d] too", at, first))
		}
	}
}

// refuseEndpoints reports faults for which an API server would refuse an Endpoints object.
func (r *report) refuseEndpoints(e *corev1.Endpoints) {
	r.refuseMeta(&e.ObjectMeta, apivalidation.NameIsDNSSubdomain)
	for i := range e.Subsets {
		s, at := &e.Subsets[i], fmt.Sprintf("subsets[%d]", i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			r.invalid(at, "", "must have addresses or notReadyAddresses")
		}
		for j, p := range s.Ports {
			field := fmt.Sprintf("%s.ports[%d].", at, j)
			if p.Name == "" && len(s.Ports) > 1 {
				r.must(field+"name", "", "must be given where there are several ports")
			}
			r.refuseAppProtocol(field, p.AppProtocol)
		}

		r.refuseSubset(s.Addresses, at+".addresses")
		r.refuseSubset(s.NotReadyAddresses, at+".notReadyAddresses")
	}
}

func (r *report) refuseSubset(addresses []corev1.EndpointAddress, at string) {
	for i := range addresses {
		a, field := &addresses[i], fmt.Sprintf("%s[%d].", at, i)
		r.refuseRoutable(field+"ip", a.IP)
		r.refuseHostAndNode(field, &a.Hostname, a.NodeName)
	}
}
