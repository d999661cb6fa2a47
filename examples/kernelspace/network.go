package kernelspace

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// view is what HNS has on the network: endpoints by address, and where other nodes are.
type view struct {
	network Network
	overlay bool
	subnets []netip.Prefix // of the network on this node
	remote  []remoteSubnet
	byAddr  map[netip.Addr]*Endpoint
	known   map[string]bool // lower-case IDs of all endpoints of HNS
	// doubles are remote endpoints of ours whose address another endpoint has, too. Windows Server
	// 2019 and 2022 let a local endpoint have the address of a remote one (hns.go,
	// getAllEndpointsByNetwork).
	doubles []string
}

// remoteSubnet is the range of pods of another node.
type remoteSubnet struct {
	pods netip.Prefix
	node netip.Addr // the provider address
}

// newView makes the view of a network and its endpoints. ours is the beginning of the names of our
// endpoints.
func newView(n *Network, eps []Endpoint, known []string, ours string) (*view, error) {
	v := &view{network: *n, overlay: strings.EqualFold(n.Type, "Overlay"),
		byAddr: map[netip.Addr]*Endpoint{}, known: map[string]bool{}}
	for _, id := range known {
		v.known[lower(id)] = true
	}
	for _, ipam := range n.Ipams {
		for _, s := range ipam.Subnets {
			if p, err := netip.ParsePrefix(s.IPAddressPrefix); err == nil {
				v.subnets = append(v.subnets, p)
			}
		}
	}
	for _, p := range n.Policies {
		if p.Type != policyRemoteSubnet {
			continue
		}
		var route struct {
			DestinationPrefix netip.Prefix
			ProviderAddress   netip.Addr
		}
		if err := json.Unmarshal(p.Settings, &route); err != nil {
			return nil, fmt.Errorf("network %s: policy %s: %w", n.Name, p.Type, err)
		}
		v.remote = append(v.remote, remoteSubnet{route.DestinationPrefix, route.ProviderAddress})
	}
	for i := range eps {
		v.add(&eps[i], ours)
	}
	return v, nil
}

// add adds an endpoint to the view. An endpoint on this node takes precedence.
func (v *view) add(e *Endpoint, ours string) {
	for _, c := range e.IPConfigurations {
		a, err := netip.ParseAddr(c.IPAddress)
		if err != nil {
			continue
		}
		a = a.Unmap()
		other := v.byAddr[a]
		if other == nil || other.Remote() && !e.Remote() {
			v.byAddr[a] = e
		} else {
			other = e
		}
		if other != nil && other.Remote() && strings.HasPrefix(other.Name, ours) {
			v.doubles = append(v.doubles, other.ID)
		}
	}
	v.known[lower(e.ID)] = true
}

// within reports whether an address can only be an endpoint of this node, because the network's own
// subnets have it.
func (v *view) within(a netip.Addr) bool {
	for _, p := range v.subnets {
		if p.Contains(a) {
			return true
		}
	}
	return len(v.subnets) == 0
}

// provider returns the address of the node that has an endpoint, and false if no other node of the
// network does (winkernel's findRemoteSubnetProviderAddress).
func (v *view) provider(a netip.Addr) (netip.Addr, bool) {
	for _, r := range v.remote {
		if r.pods.Contains(a) || r.node == a {
			return r.node, true
		}
	}
	return netip.Addr{}, false
}

// host is this node, as endpoints on overlay networks need it.
type host struct {
	addrs     []netip.Addr // the node's addresses, at most one of each family
	mac       string
	sourceVIP netip.Addr
}

// addr returns the node's address of a family.
func (h *host) addr(f servicemodel.Family) netip.Addr {
	for _, a := range h.addrs {
		if servicemodel.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// HostMAC returns the link-layer address of the interface of this node that has an address. On
// overlay networks, the endpoints of cluster IPs and of the source VIP have this address.
func HostMAC(a netip.Addr) (string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list the node's interfaces: %w", err)
	}
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			continue
		}
		for _, own := range addrs {
			if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr() == a {
				return l.HardwareAddr.String(), nil
			}
		}
	}
	return "", fmt.Errorf("no interface of this node has the address %v", a)
}

// newEndpoint returns the endpoint to make for an address that has none in HNS. It is remote,
// except for the source VIP.
func (h *host) newEndpoint(v *view, a netip.Addr, name string, vip bool) *Endpoint {
	e := &Endpoint{Name: name, HostComputeNetwork: v.network.ID, MacAddress: conjured(a),
		IPConfigurations: []IPConfig{{IPAddress: a.String()}}, SchemaVersion: schemaV2,
		Flags: RemoteEndpoint}
	if !v.overlay {
		return e
	}
	node, found := v.provider(a)
	if vip || !found { // an address outside the cluster is reached through this node
		node = h.addr(servicemodel.FamilyOf(a))
	}
	switch {
	case a == h.sourceVIP:
		e.Flags, e.MacAddress = 0, h.mac
		return e // winkernel gives a provider address, and its createEndpoint does not send it
	case vip:
		e.MacAddress = h.mac
	}
	e.Policies = []Policy{{Type: policyProviderAddress,
		Settings: json.RawMessage(`{"ProviderAddress":"` + node.String() + `"}`)}}
	return e
}

// conjured returns a link-layer address for a remote endpoint. Load balancing needs a different one
// for each endpoint, and no packet carries it. winkernel makes the same one (conjureMac), so that
// the remote endpoints of both are alike.
func conjured(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is4() {
		return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[15], b[14], b[13], b[12])
}

// build returns the load balancer of s with the identities of its endpoints, nil if HNS is to have
// none because no endpoint can be used. lacks are addresses that need an endpoint first. waits are
// endpoints of this node that the container runtime has not made yet.
func (h *host) build(s *spec, v *view, gateway *Endpoint) (lb *LoadBalancer, lacks,
	waits []netip.Addr) {
	lb = &LoadBalancer{SchemaVersion: schemaV2, Flags: s.flags,
		PortMappings: []PortMapping{{Protocol: protocols[s.key.Protocol], InternalPort: s.port,
			ExternalPort: s.key.Port, DistributionType: s.dist, Flags: s.portFlags}}}
	if !s.key.NodePort() {
		lb.FrontendVIPs = []string{s.key.Addr.String()}
	}
	if s.gateway && gateway != nil {
		lb.HostComputeEndpoints = []string{lower(gateway.ID)}
	}
	through := false // packets need this node as their source
	for _, t := range s.endpoints {
		e := v.byAddr[t.addr]
		switch {
		case e == nil && t.here && (s.local || v.within(t.addr)):
			waits = append(waits, t.addr)
			continue
		case e == nil:
			lacks = append(lacks, t.addr)
		case s.local && e.Remote():
			continue
		default:
			lb.HostComputeEndpoints = append(lb.HostComputeEndpoints, lower(e.ID))
		}
		through = through || (e == nil || e.Remote()) && v.outside(t.addr)
	}
	if len(lb.HostComputeEndpoints)+len(lacks) == 0 {
		return nil, nil, waits
	}
	if v.overlay {
		lb.SourceVIP = h.sourceVIP.String()
		if through {
			lb.SourceVIP = h.addr(s.key.Family()).String()
		}
		lacks = append(lacks, h.lacks(s, v)...)
	}
	return lb, lacks, waits
}

// outside reports whether an endpoint elsewhere is no pod: it is a node, or outside the cluster.
func (v *view) outside(a netip.Addr) bool {
	node, found := v.provider(a)
	return !found || node == a
}

// lacks returns the addresses of the node's own that need an endpoint on an overlay network.
func (h *host) lacks(s *spec, v *view) (l []netip.Addr) {
	if v.byAddr[h.sourceVIP] == nil {
		l = append(l, h.sourceVIP)
	}
	if s.vip && v.byAddr[s.key.Addr] == nil {
		l = append(l, s.key.Addr)
	}
	return l
}
