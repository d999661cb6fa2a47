package kubeproxy

import (
	"net/netip"
	"slices"
)

// virtual has the objects of the ipvs mode.
type virtual struct {
	// without kernlb's, and without virtual servers by mark
	servers []VirtualServer
	sets    map[string]map[VirtualServer]bool // the entries of each IP set; ports have no address
	device  *dummy                            // nil if there is none
	local   map[netip.Addr]bool               // addresses of the node, without the device's
}

// dummy is the device with the addresses of services.
type dummy struct {
	kind      string // of a link: "dummy"
	kernlb    bool   // an instance of kernlb made it
	addresses map[netip.Addr]bool
	foreign   netip.Addr // an address that kube-proxy did not bind, if valid
}

// planVirtual adds the objects of the ipvs mode to a plan.
func (p *Plan) planVirtual(v *virtual) {
	p.planDevice(v.device)
	for _, s := range v.servers {
		if v.owns(s) {
			p.VirtualServers = append(p.VirtualServers, s)
		}
	}
	slices.SortFunc(p.VirtualServers, VirtualServer.compare)
	for _, name := range setNames() {
		if _, ok := v.sets[name]; ok {
			p.Sets = append(p.Sets, name)
		}
	}
}

// planDevice plans for the device.
func (p *Plan) planDevice(d *dummy) {
	switch {
	case d == nil:
	case d.kind != "dummy":
		p.leave("device "+device, "it is of the type %q, which kube-proxy does not make", d.kind)
	case d.kernlb:
		p.leave("device "+device, "an instance of kernlb's ipvs backend made it")
	case d.foreign.IsValid():
		p.leave("device "+device, "it has the address %v, which kube-proxy did not bind", d.foreign)
	default:
		p.Device = device
	}
}

// owns reports whether a virtual server is kube-proxy's. kube-proxy lists its virtual servers in
// its IP sets. A virtual server at an address of its device is also its own, because it may have
// had no time to list it.
func (v *virtual) owns(s VirtualServer) bool {
	addr := s.Address.Addr()
	return v.device != nil && !v.device.kernlb && v.device.addresses[addr] ||
		slices.ContainsFunc(addressSets, func(set string) bool { return v.has(set, addr, s) }) ||
		v.nodePort(s)
}

// has reports whether a set of the family of an address has an entry.
func (v *virtual) has(set string, addr netip.Addr, entry VirtualServer) bool {
	if addr.Is6() {
		set = setName6(set)
	}
	return v.sets[set][entry]
}

// nodePort reports whether a virtual server belongs to a node port at an address of the node.
func (v *virtual) nodePort(s VirtualServer) bool {
	addr := s.Address.Addr()
	if !v.local[addr] {
		return false
	}
	set, ok := portSets[s.Protocol]
	return ok && v.has(set, addr, portOf(s)) || v.has(sctpSet, addr, s)
}

// portOf is the entry of a node port in a set of ports.
func portOf(s VirtualServer) VirtualServer {
	return VirtualServer{Address: netip.AddrPortFrom(netip.Addr{}, s.Address.Port())}
}
