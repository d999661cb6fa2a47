package servicemodel

import (
	"net/netip"
	"slices"
)

// Rules are the decisions that hold for the whole node rather than for one frontend. They change
// rarely.
type Rules struct {
	// MasqueradeMark is the bit of the packet mark that asks for masquerading. Never zero.
	MasqueradeMark uint32 `json:"masqueradeMark"`
	// LocalPods says which packets come from pods ([FromPods]). Its CIDRs are sorted, not nested.
	LocalPods PodDetector `json:"localPods,omitzero"`
	// NodePorts are, by family, the ranges in which addresses of the node take node ports; the
	// address must also be one of the node's, and not loopback but for LocalhostNodePorts. An
	// unrestricted family has the whole family (/0) as its only range; a family in which node ports
	// answer nowhere has none.
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// ServiceCIDRs are ranges in which addresses without a service are dropped. Sorted, not nested.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// LocalhostNodePorts is [Node.LocalhostNodePorts]: IPv4 loopback addresses in NodePorts take
	// node ports from the node itself.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitzero"`
	// MasqueradeNeighbours is [Node.MasqueradeNeighbours].
	MasqueradeNeighbours bool `json:"masqueradeNeighbours,omitzero"`
}

// Equal reports whether r and o are the same.
func (r Rules) Equal(o Rules) bool {
	return r.MasqueradeMark == o.MasqueradeMark && r.LocalhostNodePorts == o.LocalhostNodePorts &&
		r.MasqueradeNeighbours == o.MasqueradeNeighbours &&
		r.LocalPods.Bridge == o.LocalPods.Bridge &&
		r.LocalPods.InterfacePrefix == o.LocalPods.InterfacePrefix &&
		slices.Equal(r.LocalPods.CIDRs, o.LocalPods.CIDRs) &&
		slices.Equal(r.NodePorts, o.NodePorts) && slices.Equal(r.ServiceCIDRs, o.ServiceCIDRs)
}
