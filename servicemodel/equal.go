package servicemodel

import "slices"

// equal reports whether s and o mean the same in every field. Empty and nil lists are the same.
func (s *Service) equal(o *Service) bool {
	return s == o || s.Name == o.Name && slices.Equal(s.Ports, o.Ports) && s.equalAddrs(o) &&
		s.SessionAffinity == o.SessionAffinity &&
		s.InternalTrafficPolicy == o.InternalTrafficPolicy &&
		s.ExternalTrafficPolicy == o.ExternalTrafficPolicy && s.Prefer == o.Prefer &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && s.Masquerade == o.Masquerade &&
		s.Scheduler == o.Scheduler && s.SlowStart == o.SlowStart &&
		s.Forwarding == o.Forwarding &&
		s.Connections == o.Connections
}

func (s *Service) equalAddrs(o *Service) bool {
	return slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.HostIPs, o.HostIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.LoadBalancerSourceRanges, o.LoadBalancerSourceRanges)
}

func equalEndpoints(a, b []Endpoint) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if !a[i].equal(&b[i]) {
			return false
		}
	}
	return true
}

func (e *Endpoint) equal(o *Endpoint) bool {
	return e.Addr == o.Addr && e.Ready == o.Ready && e.Serving == o.Serving &&
		e.Terminating == o.Terminating &&
		e.Node == o.Node && e.Zone == o.Zone && e.Weight == o.Weight &&
		e.Quiesced == o.Quiesced &&
		slices.Equal(e.Ports, o.Ports) &&
		slices.Equal(e.ForNodes, o.ForNodes) && slices.Equal(e.ForZones, o.ForZones)
}

func (n *Node) equal(o *Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.OnlyFamily == o.OnlyFamily &&
		slices.Equal(n.Addresses, o.Addresses) &&
		n.NodePortAddresses.Primary == o.NodePortAddresses.Primary &&
		slices.Equal(n.NodePortAddresses.CIDRs, o.NodePortAddresses.CIDRs) &&
		n.LocalPods.equal(o.LocalPods) && slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs) &&
		n.MasqueradeAll == o.MasqueradeAll && n.MasqueradeMark == o.MasqueradeMark &&
		n.LocalhostNodePorts == o.LocalhostNodePorts &&
		n.MasqueradeNeighbours == o.MasqueradeNeighbours &&
		n.NoEndpoints == o.NoEndpoints && n.Forbidden == o.Forbidden
}

func (d PodDetector) equal(o PodDetector) bool {
	return d.Bridge == o.Bridge && d.InterfacePrefix == o.InterfacePrefix &&
		slices.Equal(d.CIDRs, o.CIDRs)
}
