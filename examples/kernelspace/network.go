package kernelspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// view is the contents of HNS for the network: endpoints by address, and the ranges of other nodes.
type view struct {
	network *Network
	overlay bool
	subnets []netip.Prefix // of the network on this node
	remote  []remoteSubnet
	byAddr  map[netip.Addr]*Endpoint
	gateway *Endpoint       // the root endpoint of the node, nil if there is none
	known   map[string]bool // lower-case IDs of all endpoints of HNS
	// doubles are our remote endpoints whose address another endpoint also has. Windows Server 2019
	// and 2022 let a local endpoint have the address of a remote endpoint (hns.go,
	// getAllEndpointsByNetwork).
	doubles []string
}

// remoteSubnet is the range of pods of another node, in a policy of the network.
type remoteSubnet struct {
	DestinationPrefix netip.Prefix
	ProviderAddress   netip.Addr // of the node
}

// errNoNetwork says that the network does not exist.
var errNoNetwork = errors.New("there is no such network")

// look queries the network and its endpoints. ids are the identities of all endpoints of HNS.
func (b *Backend) look(ids []string) (*view, error) {
	n, err := b.hns.Network(b.cfg.Network)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: %w", errNoNetwork, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: network %s: %w", Name, b.cfg.Network, err)
	}
	v := &view{network: n, overlay: strings.EqualFold(n.Type, "Overlay"),
		byAddr: map[netip.Addr]*Endpoint{}, known: map[string]bool{}}
	if v.overlay {
		switch {
		case !b.features.RemoteSubnet:
			err = fmt.Errorf("HNS lacks remote subnets: %w", kernelerr.ErrKernelTooOld)
		case !b.cfg.SourceVIP.IsValid():
			err = errors.New("Config.SourceVIP is not set")
		case b.cfg.HostMAC == "" || len(b.cfg.NodeIPs) == 0:
			err = errors.New("Config.NodeIPs or HostMAC is not set")
		}

		if err != nil {
			return nil, fmt.Errorf("%s: network %s is an overlay: %w", Name, n.Name, err)
		}
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
		var route remoteSubnet
		if err := json.Unmarshal(p.Settings, &route); err != nil {
			return nil, fmt.Errorf("%s: network %s: policy %s: %w", Name, n.Name, p.Type, err)
		}
		v.remote = append(v.remote, route)
	}

	for _, id := range ids {
		v.known[lower(id)] = true
	}
	eps, err := b.hns.Endpoints(n.ID)
	if err != nil {
		return nil, fmt.Errorf("%s: list the endpoints of network %s: %w", Name, n.Name,
			interrupted(err))
	}

	for i := range eps {
		v.add(&eps[i], b.prefix())
		if eps[i].Name == b.cfg.RootEndpoint {
			v.gateway = &eps[i]
		}
	}

	return v, nil
}

// add adds an endpoint to the view. An endpoint on this node takes precedence. The names of our
// endpoints begin with ours.
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
	return len(v.subnets) == 0 || slices.ContainsFunc(v.subnets, func(p netip.Prefix) bool {
		return p.Contains(a)
	})
}

// provider returns the address of the node that has an endpoint, and false if no other node of the
// network does (winkernel's findRemoteSubnetProviderAddress).
func (v *view) provider(a netip.Addr) (netip.Addr, bool) {
	for _, r := range v.remote {
		if r.DestinationPrefix.Contains(a) || r.ProviderAddress == a {
			return r.ProviderAddress, true
		}
	}

	return netip.Addr{}, false
}

// nodeIP returns the node's address of a family.
func (b *Backend) nodeIP(f servicemodel.Family) netip.Addr {
	for _, a := range b.cfg.NodeIPs {
		if servicemodel.FamilyOf(a) == f {
			return a
		}
	}

	return netip.Addr{}
}

// HostMAC returns the link-layer address of the interface of this node that has the address a. On
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

// newEndpoint returns the endpoint to create for an address that has no endpoint in HNS. It is
// remote, except for the source VIP. vip says that the address is a cluster IP.
func (b *Backend) newEndpoint(v *view, a netip.Addr, vip bool) *Endpoint {
	e := &Endpoint{Name: b.prefix() + a.String(), HostComputeNetwork: v.network.ID,
		MacAddress: conjured(a), IPConfigurations: []IPConfig{{IPAddress: a.String()}},
		SchemaVersion: schemaV2, Flags: RemoteEndpoint}
	if !v.overlay {
		return e
	}
	node, found := v.provider(a)
	if vip || !found { // an address outside the cluster is reached through this node
		node = b.nodeIP(servicemodel.FamilyOf(a))
	}
	switch {
	case a == b.cfg.SourceVIP:
		e.Flags, e.MacAddress = 0, b.cfg.HostMAC
		return e // winkernel gives a provider address, and its createEndpoint does not send it
	case vip:
		e.MacAddress = b.cfg.HostMAC
	}

	e.Policies = []Policy{{Type: policyProviderAddress,
		Settings: json.RawMessage(`{"ProviderAddress":"` + node.String() + `"}`)}}
	return e
}

// conjured returns a link-layer address for a remote endpoint. Load balancing needs a different
// address for each endpoint, and no packet carries it. winkernel computes the same address
// (conjureMac), so the remote endpoints of both programs are the same.
func conjured(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is4() {
		return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[15], b[14], b[13], b[12])
}

// build returns the load balancer of s with the identities of its endpoints. It returns nil if HNS
// must not have the load balancer, because s is nil or no endpoint can be used. lacks are addresses
// that need an endpoint first. waits are endpoints of this node that the container runtime has not
// created yet.
func (b *Backend) build(s *spec, v *view) (lb *LoadBalancer, lacks, waits []netip.Addr) {
	if s == nil {
		return nil, nil, nil
	}
	lb = &LoadBalancer{SchemaVersion: schemaV2, Flags: s.flags,
		PortMappings: []PortMapping{{Protocol: protocols[s.key.Protocol], InternalPort: s.port,
			ExternalPort: s.key.Port, DistributionType: s.dist, Flags: s.portFlags}}}
	if !s.key.NodePort() {
		lb.FrontendVIPs = []string{s.key.Addr.String()}
	}
	if s.gateway && v.gateway != nil {
		lb.HostComputeEndpoints = []string{lower(v.gateway.ID)}
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
		lb.SourceVIP = b.cfg.SourceVIP.String()
		if through {
			lb.SourceVIP = b.nodeIP(s.key.Family()).String()
		}
	}

	own := slices.DeleteFunc(b.ownAddrs(s, v), func(a netip.Addr) bool {
		return v.byAddr[a] != nil
	})
	return lb, append(lacks, own...), waits
}

// outside reports whether an endpoint elsewhere is not a pod: it is a node, or outside the cluster.
func (v *view) outside(a netip.Addr) bool {
	node, found := v.provider(a)
	return !found || node == a
}

// ownAddrs returns the node's addresses that s needs as endpoints on an overlay network.
func (b *Backend) ownAddrs(s *spec, v *view) []netip.Addr {
	switch {
	case !v.overlay:
		return nil
	case s.vip:
		return []netip.Addr{b.cfg.SourceVIP, s.key.Addr}
	}

	return []netip.Addr{b.cfg.SourceVIP}
}
