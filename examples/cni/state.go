package main

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// state returns the wanted state: a service for each mapping or range of mappings, and family,
// named after its field, with the container as its endpoint.
func (c *config) state(owner string) servicemodel.State {
	node := servicemodel.Node{LocalhostNodePorts: true, MasqueradeNeighbours: true}
	if c.MarkMasqBit != nil {
		node.MasqueradeMark = 1 << *c.MarkMasqBit
	}
	state := servicemodel.State{}.WithNode(node)
	for i, end := range servicemodel.JoinPorts(len(c.published), c.place) {
		p := c.published[i]
		m := c.mappings[p.mapping]
		svc := c.service(m, p.at)
		svc.Ports[0].EndPort = end
		if end != 0 {
			svc.Ports[0].TargetPort = shifted(m)
			m.ContainerPort = 0 // packets keep their ports, or go to the target port and the next
		}
		svc.Name = servicemodel.Name{Namespace: owner,
			Name: fmt.Sprintf("portMappings[%d]-%s", p.mapping, p.family.name)}
		state = state.WithService(svc).WithEndpoints(svc.Name, []servicemodel.Endpoint{{
			Addr: p.family.container, Ports: []servicemodel.EndpointPort{{
				Protocol: m.protocol, Port: uint16(m.ContainerPort)}}}})
	}

	return state
}

// place is the address, family and protocol at which ports of a container are published.
type place struct {
	family   string
	at       netip.Addr // invalid for all addresses
	protocol servicemodel.Protocol
}

// place returns the place of the i-th port, and whether the port may be in a range. At a single
// address it may not, because each port there takes precedence over the same port at all addresses.
func (c *config) place(i int) (at place, port, target uint16, joins bool) {
	p := &c.published[i]
	m := &c.mappings[p.mapping]
	return place{p.family.name, p.at, m.protocol}, uint16(m.HostPort),
		uint16(m.ContainerPort), !p.at.IsValid()
}

// shifted returns the first port of the container to which a range is mapped, or 0 if packets keep
// their ports.
func shifted(m mapping) uint16 {
	if m.ContainerPort == m.HostPort {
		return 0
	}
	return uint16(m.ContainerPort)
}

// at returns the address of the host at which a mapping is published in a family, and whether it is
// published there. The unspecified address means all addresses.
func (m *mapping) at(f family) (addr netip.Addr, ok bool) {
	if m.hostIP.IsValid() && m.hostIP.Is4() != f.container.Is4() {
		return addr, false
	}
	hostIP := m.hostIP
	if hostIP.IsUnspecified() {
		hostIP = netip.Addr{}
	}
	switch {
	case !f.only.IsValid():
		return hostIP, true
	case !hostIP.IsValid():
		return f.only, true
	}

	return hostIP, hostIP == f.only
}

// service publishes a mapping at one address of the host, or at all addresses if at is invalid.
// Clients keep their addresses, with three exceptions: the host at loopback addresses, a container
// that reaches itself, and a container that reaches a neighbour on its bridge. With masqAll every
// client is masqueraded.
func (c *config) service(m mapping, at netip.Addr) *servicemodel.Service {
	port := servicemodel.ServicePort{Protocol: m.protocol, Port: uint16(m.HostPort)}
	svc := &servicemodel.Service{
		Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)}
	if c.MasqAll {
		svc.Masquerade = servicemodel.MasqueradeAt(servicemodel.MasqueradeAlways)
	}
	if at.IsValid() {
		svc.HostIPs = []netip.Addr{at}
	} else {
		port.NodePort = port.Port
	}

	svc.Ports = []servicemodel.ServicePort{port}
	return svc
}
