package servicemodel

import (
	"net/netip"
	"slices"
)

// This file holds the parts of the resolution that few services need.

// health returns the answers of the service's health check node port in each family: the number of
// ready addresses on this node, over all ports of the endpoints. As in kube-proxy, the names of the
// service's ports are ignored: while a port is being renamed, the node stays healthy.
func (r *resolver) health(svc *Service, eps []endpoint) *HealthCheck {
	addrs := r.addrs[:0]
	for i := range eps {
		e := &eps[i]
		if usabilityOf(e) == ready && r.view.local(e) && len(e.Ports) > 0 {
			addrs = append(addrs, e.Addr)
		}
	}

	slices.SortFunc(addrs, netip.Addr.Compare)
	r.addrs = addrs
	h := &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
	for _, a := range slices.Compact(addrs) {
		if FamilyOf(a) == IPv4 {
			h.IPv4++
		} else {
			h.IPv6++
		}
	}

	if !svc.exists(IPv4, r.view.only) {
		h.IPv4 = NotServed
	}
	if !svc.exists(IPv6, r.view.only) {
		h.IPv6 = NotServed
	}
	return h
}

// nodePortFamilies returns the families in which the node ports of a service without cluster IPs
// answer: the families of its other addresses and of its endpoints, or both if it has neither.
func nodePortFamilies(svc *Service, eps []endpoint) (in perFamily[bool]) {
	for _, a := range slices.Concat(svc.ExternalIPs, svc.HostIPs) {
		*in.of(FamilyOf(a)) = true
	}
	for _, a := range svc.LoadBalancerIPs {
		*in.of(FamilyOf(a.Addr)) = true
	}
	for i := range eps {
		*in.of(FamilyOf(eps[i].Addr)) = true
	}
	if in == (perFamily[bool]{}) {
		return perFamily[bool]{true, true}
	}
	return in
}

// allowed returns the ranges that may use the load balancer's addresses of the family, or nil for
// no restriction. If the node itself is allowed, these addresses are allowed, too: if the node also
// has such an address, its packets to the address have the address as their source.
func (d *decider) allowed() []netip.Prefix {
	var allowed []netip.Prefix
	self := false
	node := *d.view.primary.of(d.family)
	for _, p := range d.svc.LoadBalancerSourceRanges {
		if FamilyOf(p.Addr()) != d.family {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		allowed = append(allowed, p)
		self = self || p.Contains(node)
	}

	if self {
		for _, lb := range d.svc.LoadBalancerIPs {
			if FamilyOf(lb.Addr) == d.family && !lb.Proxy {
				allowed = append(allowed, netip.PrefixFrom(lb.Addr, lb.Addr.BitLen()))
			}
		}
	}

	return canonical(allowed)
}

// masquerade returns the origins that a node masquerades at f. By default, f.Masquerade follows the
// traffic policy or [Node.MasqueradeAll], and for other cluster IPs it depends on the node's pods.
func (f *Frontend) masquerade(v *view) Origins {
	m, family := f.Masquerade, f.Key.Family()
	switch p := f.MasqueradePolicy; {
	case p == MasqueradeAlways:
		m = FromAnywhere
	case p == MasqueradeHost:
		m = FromHost
	case p == MasqueradeNotPods, p == MasqueradeDefault && f.Kind == ClusterIP &&
		m != FromAnywhere && *v.detectsPods.of(family):
		m = FromHost | FromOutside
	case p == MasqueradeNever, f.Kind == ClusterIP && m != FromAnywhere:
		m = 0
	}

	if v.localhost && (f.Key.Addr.IsLoopback() || f.Kind == NodePort && family == IPv4) {
		m |= FromHost // no endpoint could answer to a loopback address
	}
	return m
}

// masqueradeIP returns the source of masqueraded connections to f, according to the service.
func (f *Frontend) masqueradeIP(wanted []netip.Addr) netip.Addr {
	for _, a := range wanted {
		switch {
		case FamilyOf(a) != f.Key.Family():
		case !a.IsUnspecified():
			return a
		case !f.Key.NodePort() && !f.Key.Addr.IsLoopback():
			return f.Key.Addr
		}
	}

	return netip.Addr{}
}
