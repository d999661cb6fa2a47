package servicemodel

import (
	"net/netip"
	"slices"
	"time"
)

// decider decides about the frontends of one service port in one family.
type decider struct {
	svc      *Service
	port     *ServicePort
	family   Family
	view     *view
	name     PortName
	affinity time.Duration
	// cluster and local are the verdicts under the traffic policies of these names.
	cluster, local Verdict
}

// claims appends the frontends that the port wants.
func (d *decider) claims(to []Frontend, nodePort bool) []Frontend {
	for _, a := range d.svc.ClusterIPs {
		if FamilyOf(a) == d.family {
			to = append(to, d.internal(a))
		}
	}
	first := len(to)
	for _, lb := range d.svc.LoadBalancerIPs {
		if FamilyOf(lb.Addr) == d.family && lb.Mode == LoadBalancerVIP {
			to = append(to, d.external(LoadBalancer, lb.Addr, d.port.Port))
		}
	}
	if len(to) > first && len(d.svc.LoadBalancerSourceRanges) > 0 {
		sources := d.sources()
		for i := first; i < len(to); i++ {
			to[i].Sources = sources
		}
	}
	to = d.each(to, ExternalIP, d.svc.ExternalIPs)
	to = d.each(to, HostIP, d.svc.HostIPs)
	if nodePort && d.port.NodePort != 0 {
		to = append(to, d.external(NodePort, unspecified(d.family), d.port.NodePort))
	}
	return to
}

// each appends the frontends at addresses for clients outside the cluster.
func (d *decider) each(to []Frontend, k Kind, addrs []netip.Addr) []Frontend {
	for _, a := range addrs {
		if FamilyOf(a) == d.family && (!a.IsLoopback() || d.view.localhost) {
			to = append(to, d.external(k, a, d.port.Port))
		}
	}
	return to
}

// internal decides about a cluster IP: only the internal policy counts, wherever a packet comes
// from.
func (d *decider) internal(a netip.Addr) Frontend {
	f := d.frontend(ClusterIP, a, d.port.Port)
	f.Internal, f.External = d.cluster, d.cluster
	if d.svc.InternalTrafficPolicy == PolicyLocal {
		f.Internal, f.External = d.local, d.local
	}
	switch {
	case d.view.masqueradeAll:
		f.Masquerade = FromAnywhere
	case *d.view.detectsPods.of(d.family):
		f.Masquerade = FromHost | FromOutside
	}
	f.Masquerade = d.svc.Masquerade.of(ClusterIP).origins(f.Masquerade)
	return f
}

// external decides about an address that clients outside the cluster use. Under policy Local they
// keep their source address and get local endpoints only; pods and the node itself, whose replies
// come back to this node anyway, get all of them.
func (d *decider) external(k Kind, a netip.Addr, port uint16) Frontend {
	f := d.frontend(k, a, port)
	f.Internal, f.External, f.Masquerade = d.cluster, d.cluster, FromAnywhere
	if d.svc.ExternalTrafficPolicy == PolicyLocal {
		f.External, f.Masquerade = d.local, FromHost
	}
	f.Masquerade = d.svc.Masquerade.of(k).origins(f.Masquerade)
	if d.view.localhost && (a.IsLoopback() || k == NodePort && d.family == IPv4) {
		f.Masquerade |= FromHost // nobody could answer to a loopback address
	}
	return f
}

func (d *decider) frontend(k Kind, a netip.Addr, port uint16) Frontend {
	return Frontend{
		Key:     FrontendKey{Addr: a, Protocol: d.port.Protocol, Port: port},
		Service: d.name, Kind: k, Affinity: d.affinity,
	}
}

// sources returns who may use the load balancer's addresses of the family; nil if anybody may.
// Where the node itself may, so may these addresses: what the node sends to an address it also
// holds has that address as its source.
func (d *decider) sources() []netip.Prefix {
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
			if FamilyOf(lb.Addr) == d.family && lb.Mode == LoadBalancerVIP {
				allowed = append(allowed, netip.PrefixFrom(lb.Addr, lb.Addr.BitLen()))
			}
		}
	}
	return canonical(allowed)
}

// sortClaims sorts the claims of one service port by key. Where the port claims a key twice, say as
// load balancer IP and as external IP, the lower kind stays.
func sortClaims(claims []Frontend) []Frontend {
	slices.SortFunc(claims, func(a, b Frontend) int {
		if c := a.Key.Compare(b.Key); c != 0 {
			return c
		}
		return int(a.Kind) - int(b.Kind)
	})
	return slices.CompactFunc(claims, func(a, b Frontend) bool { return a.Key == b.Key })
}
