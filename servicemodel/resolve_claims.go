package servicemodel

import (
	"cmp"
	"net/netip"
)

// decider decides about the frontends of one service port in one family.
type decider struct {
	svc     *Service
	service PortName
	family  Family
	view    *view
	// cluster and local are the verdicts under traffic policy Cluster and Local.
	cluster, local Verdict
	sources        []netip.Prefix // that may use load balancer IPs
}

// frontend decides about an address and port.
//
// At a cluster IP only the internal policy counts, wherever a packet comes from. At other addresses
// clients outside the cluster keep their source address under policy Local, and reach local
// endpoints only. Pods and the node itself reach all endpoints, because replies to them come back
// to this node anyway.
func (d *decider) frontend(k Kind, a netip.Addr, port uint16) Frontend {
	f := Frontend{
		Key:     FrontendKey{Addr: a, Protocol: d.service.Protocol, Port: port},
		Service: d.service, Kind: k, Internal: d.cluster, External: d.cluster,
	}
	if affinity := d.svc.SessionAffinity; affinity.ClientIP {
		f.Affinity = cmp.Or(affinity.Timeout, defaultAffinityTimeout)
		f.AffinityBits, f.AffinityService = affinity.bits(d.family), affinity.WholeService
	}
	switch {
	case k == ClusterIP:
		if d.svc.InternalTrafficPolicy == PolicyLocal {
			f.Internal, f.External = d.local, d.local
		}
		switch {
		case d.view.masqueradeAll:
			f.Masquerade = FromAnywhere
		case *d.view.detectsPods.of(d.family):
			f.Masquerade = FromHost | FromOutside
		}
	case d.svc.ExternalTrafficPolicy == PolicyLocal:
		f.External, f.Masquerade = d.local, FromHost
	default:
		f.Masquerade = FromAnywhere
	}
	f.Masquerade = d.svc.Masquerade.origins(k, f.Masquerade)
	if d.view.localhost && (a.IsLoopback() || k == NodePort && d.family == IPv4) {
		f.Masquerade |= FromHost // no endpoint could answer to a loopback address
	}
	if k == LoadBalancer {
		f.Sources = d.sources
	}
	return f
}

// allowed returns the ranges that may use the load balancer's addresses of the family, or nil for
// no restriction. If the node itself may, these addresses may, too: the node's packets to an
// address that it also holds have that address as their source.
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
