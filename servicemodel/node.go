package servicemodel

import "net/netip"

// Node is the view from one node: who it is, which traffic is local, and how it masquerades.
// The zero value is a node without a name that takes node ports at all its addresses, cannot
// tell pods from others, and marks packets to be masqueraded with [DefaultMasqueradeMark].
type Node struct {
	// Name is compared with [Endpoint.Node] and the node hints. Empty: no endpoint is local.
	Name string `json:"name,omitzero"`
	// Zone is compared with the zone hints.
	Zone string `json:"zone,omitzero"`

	// Addresses are the node's own addresses, best first. The first of each family is its primary
	// one.
	Addresses []netip.Addr `json:"addresses,omitempty"`

	// NodePortAddresses says at which of the node's addresses node ports answer.
	NodePortAddresses NodePortAddresses `json:"nodePortAddresses,omitzero"`

	// LocalPods says which packets come from pods.
	LocalPods PodDetector `json:"localPods,omitzero"`

	// ServiceCIDRs are the ranges cluster IPs are taken from: an address in them that no
	// service has is dropped rather than routed away. Empty: nothing is.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`

	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool `json:"masqueradeAll,omitzero"`
	// MasqueradeMark is the one bit of the packet mark that is set, between DNAT and
	// postrouting, on packets to be masqueraded. Zero means [DefaultMasqueradeMark]. Package ipvs
	// needs none.
	MasqueradeMark uint32 `json:"masqueradeMark,omitzero"`

	// LocalhostNodePorts lets IPv4 node ports, and [Service.HostIPs] among loopback addresses,
	// answer at 127.0.0.0/8 to the node itself, if NodePortAddresses selects something of it. The
	// kernel then routes packets of loopback addresses (sysctl route_localnet), and what comes from
	// elsewhere for one is dropped. Package ipvs cannot, and refuses it.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitzero"`

	// MasqueradeNeighbours masquerades, whatever [Service.Masquerade] says, also whoever reaches an
	// endpoint by the interface that it came in by. The two are neighbours, as containers on one
	// bridge are: the endpoint would answer the client directly, rather than through the node,
	// where packets between ports of a bridge do not pass the rules
	// (net.bridge.bridge-nf-call-iptables). Only package nftables can.
	MasqueradeNeighbours bool `json:"masqueradeNeighbours,omitzero"`
}

// DefaultMasqueradeMark, bit 12, leaves the mark to the backend. It is this bit, except where
// package iptables has the chains of kube-proxy, and with them its bit, 14. No program that we know
// uses bit 12, in which it differs from most others: bit 13 is that of the CNI plugin portmap, 14
// kube-proxy's, and also in the mark of wg-quick (0xca6c), 15 kubelet's, 8 to 11 are Cilium's, 16
// and up those of Calico, Tailscale and package ipvs.
const DefaultMasqueradeMark uint32 = 1 << 12

// NodePortAddresses selects addresses of the node. The zero value selects all of them
// except loopback.
type NodePortAddresses struct {
	// Primary selects the primary address of each family only.
	Primary bool `json:"primary,omitzero"`
	// CIDRs selects the node's addresses inside them, each family apart: no CIDR of a
	// family, or one that is the whole family, selects all of that family.
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
}

// PodDetector says which packets come from pods: of the whole cluster, or of this node,
// as the CIDRs or interface given say. The zero value detects none.
type PodDetector struct {
	// CIDRs are source ranges (kube-proxy's ClusterCIDR and NodeCIDR modes).
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
	// Bridge is the name of the interface they come in by (BridgeInterface).
	Bridge string `json:"bridge,omitzero"`
	// InterfacePrefix is how the names of those interfaces begin (InterfaceNamePrefix).
	InterfacePrefix string `json:"interfacePrefix,omitzero"`
}
