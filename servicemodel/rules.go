package servicemodel

import (
	"net/netip"
	"slices"
)

// Rules are the decisions that hold for the whole node and not for one frontend. They change
// rarely.
type Rules struct {
	// MasqueradeMark is the bit of the packet mark that asks for masquerading. Never zero.
	MasqueradeMark uint32 `json:"masqueradeMark"`
	// OnlyFamily is [Node.OnlyFamily].
	OnlyFamily Family `json:"onlyFamily,omitzero"`
	// LocalPods says which packets come from pods ([FromPods]). Its CIDRs are sorted, not nested.
	LocalPods PodDetector `json:"localPods,omitzero"`
	// NodePorts are, by family, the ranges whose addresses answer node ports. The address must also
	// belong to the node, and must not be loopback except with LocalhostNodePorts. A family without
	// restriction has its whole range (/0) as the only one. A family in which no address answers
	// node ports has no range.
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// ServiceCIDRs are ranges in which addresses without a service are dropped. Sorted, not nested.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// LocalhostNodePorts is [Node.LocalhostNodePorts]: the IPv4 loopback addresses in NodePorts
	// answer node ports to the node itself.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitzero"`
	// MasqueradeNeighbours is [Node.MasqueradeNeighbours].
	MasqueradeNeighbours bool `json:"masqueradeNeighbours,omitzero"`
	// NoEndpoints and Forbidden have the same meaning as in [Node]. The defaults are empty.
	NoEndpoints string `json:"noEndpoints,omitzero"`
	Forbidden   string `json:"forbidden,omitzero"`
}

// Equal reports whether r and o are the same.
func (r Rules) Equal(o Rules) bool {
	return r.MasqueradeMark == o.MasqueradeMark && r.OnlyFamily == o.OnlyFamily &&
		r.LocalhostNodePorts == o.LocalhostNodePorts &&
		r.MasqueradeNeighbours == o.MasqueradeNeighbours &&
		r.NoEndpoints == o.NoEndpoints && r.Forbidden == o.Forbidden &&
		r.LocalPods.Bridge == o.LocalPods.Bridge &&
		r.LocalPods.InterfacePrefix == o.LocalPods.InterfacePrefix &&
		slices.Equal(r.LocalPods.CIDRs, o.LocalPods.CIDRs) &&
		slices.Equal(r.NodePorts, o.NodePorts) && slices.Equal(r.ServiceCIDRs, o.ServiceCIDRs)
}
