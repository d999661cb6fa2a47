package servicemodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Node describes a node: its name, which traffic is local, and how it masquerades. The zero value
// is a node without a name. It answers node ports at all its addresses, cannot tell pods from other
// clients, and marks packets for masquerading with [DefaultMasqueradeMark].
type Node struct {
	// Name is compared with [Endpoint.Node] and with the node hints of endpoints. If it is empty,
	// no endpoint is local.
	Name string `json:"name,omitzero"`
	// Zone is compared with the zone hints of endpoints.
	Zone string `json:"zone,omitzero"`

	// Addresses are the node's own addresses, best first. The first address of each family is the
	// primary address.
	Addresses []netip.Addr `json:"addresses,omitempty"`

	// OnlyFamily is the only address family that the node serves. Addresses and endpoints of the
	// other family are removed from all services, and backends keep no objects of that family. Set
	// it on a single-stack node of a dual-stack cluster. Zero means both families: a backend then
	// keeps objects for the families that services use, and an engine leaves out a family that the
	// kernel lacks.
	OnlyFamily Family `json:"onlyFamily,omitzero"`

	// NodePortAddresses selects the addresses of the node that accept connections to node ports.
	NodePortAddresses NodePortAddresses `json:"nodePortAddresses,omitzero"`

	// LocalPods selects the packets that come from pods.
	LocalPods PodDetector `json:"localPods,omitzero"`

	// ServiceCIDRs are the ranges of cluster IPs. Packets to addresses in these ranges that no
	// service has are dropped instead of routed. If it is empty, no packets are dropped.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`

	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool `json:"masqueradeAll,omitzero"`
	// MasqueradeMark is a single bit of the packet mark. The kernel rules set it on packets to
	// masquerade, from DNAT until postrouting. Zero means [DefaultMasqueradeMark]. Package ipvs
	// needs no mark.
	MasqueradeMark uint32 `json:"masqueradeMark,omitzero"`

	// LocalhostNodePorts makes IPv4 node ports answer to the node itself at the addresses of
	// 127.0.0.0/8 that NodePortAddresses selects. If it selects any of them, loopback addresses in
	// [Service.HostIPs] answer too. The kernel then routes packets with loopback addresses (sysctl
	// route_localnet), and packets from elsewhere to a loopback address are dropped. Package ipvs
	// cannot do this and refuses it.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitzero"`

	// MasqueradeNeighbours also masquerades connections that arrive on the interface through which
	// the endpoint is reached, such as connections between two containers on one bridge. It
	// overrides [Service.Masquerade]. Without masquerading, the endpoint would answer the client
	// directly: packets between ports of a bridge bypass the rules
	// (net.bridge.bridge-nf-call-iptables). Only package nftables can do this.
	MasqueradeNeighbours bool `json:"masqueradeNeighbours,omitzero"`

	// NoEndpoints is the answer to clients of services without endpoints: "reset" (TCP reset, or
	// ICMP port unreachable for other protocols; the default), "reject" (ICMP port unreachable, as
	// in kube-proxy) or "drop" (no answer; package nftables only). After a few ICMP errors, the
	// kernel sends each client only one per second, so with "reject" most clients run into a
	// timeout.
	NoEndpoints string `json:"noEndpoints,omitzero"`
	// Forbidden is the answer to clients that [Service.LoadBalancerSourceRanges] do not allow, with
	// the same values. The default is "drop"; only package nftables supports the other values.
	Forbidden string `json:"forbidden,omitzero"`
}

// DefaultMasqueradeMark, bit 12, lets the backend choose the mark. Backends use bit 12, with one
// exception: package iptables uses bit 14, as kube-proxy does, if it writes kube-proxy's chains.
//
// No other program known to us uses bit 12. The CNI plugin portmap uses bit 13, kube-proxy bit 14
// (also in the mark of wg-quick, 0xca6c), the kubelet bit 15, and Cilium bits 8 to 11. Calico,
// Tailscale and package ipvs use bits from 16.
const DefaultMasqueradeMark uint32 = 1 << 12

// NodePortAddresses selects addresses of the node. The zero value selects all addresses. Loopback
// addresses answer only with [Node.LocalhostNodePorts], even if they are selected here.
type NodePortAddresses struct {
	// Primary selects only the primary address of each family.
	Primary bool `json:"primary,omitzero"`
	// CIDRs selects the node's addresses inside these ranges. The families are independent: if a
	// family has no CIDR here, or its whole range (/0), all its addresses are selected.
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
}

// PodDetector detects packets that come from pods of the whole cluster or of this node, by CIDRs or
// by interface. The zero value detects no pods.
type PodDetector struct {
	// CIDRs are source ranges (kube-proxy's ClusterCIDR and NodeCIDR modes).
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
	// Bridge is the name of the interface on which packets of pods arrive (BridgeInterface).
	Bridge string `json:"bridge,omitzero"`
	// InterfacePrefix is the prefix of the names of these interfaces (InterfaceNamePrefix).
	InterfacePrefix string `json:"interfacePrefix,omitzero"`
}

// primary returns the first address of each family, or an invalid address if there is none.
func (n *Node) primary() (p perFamily[netip.Addr]) {
	for _, a := range n.Addresses {
		if first := p.of(FamilyOf(a)); !first.IsValid() {
			*first = a
		}
	}

	return p
}

// detects reports whether d can detect pods of family f. An interface serves both families, a range
// only its own.
func (d PodDetector) detects(f Family) bool {
	return d.Bridge != "" || d.InterfacePrefix != "" || slices.ContainsFunc(d.CIDRs, ofFamily(f))
}

// loopback4 are the loopback addresses of IPv4.
var loopback4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)

// rules returns the decisions that apply to the whole node.
func (n *Node) rules() Rules {
	r := Rules{
		MasqueradeMark:       n.MasqueradeMark,
		LocalPods:            n.LocalPods,
		OnlyFamily:           n.OnlyFamily,
		NodePorts:            n.nodePorts(),
		ServiceCIDRs:         n.served(n.ServiceCIDRs),
		LocalhostNodePorts:   n.LocalhostNodePorts,
		MasqueradeNeighbours: n.MasqueradeNeighbours,
		NoEndpoints:          wordOr(cmp.Or(n.NoEndpoints, answerReset), answerReject),
		Forbidden:            wordOr(n.Forbidden, answerDrop),
	}
	if r.MasqueradeMark == 0 {
		r.MasqueradeMark = DefaultMasqueradeMark
	}
	r.LocalPods.CIDRs = n.served(n.LocalPods.CIDRs)
	return r
}

// Answers to clients that are not served.
const (
	answerReject = "reject"
	answerReset  = "reset"
	answerDrop   = "drop"
)

// served returns the ranges of the families that the node serves, in canonical form.
func (n *Node) served(ranges []netip.Prefix) []netip.Prefix {
	return canonical(filter(ranges, func(p netip.Prefix) bool {
		return FamilyOf(p.Addr()).servedBy(n.OnlyFamily)
	}))
}

// nodePorts returns the ranges of [Rules.NodePorts]. If Primary is set and a family has no address,
// nothing answers in that family; kube-proxy would answer at all addresses.
func (n *Node) nodePorts() []netip.Prefix {
	var open []netip.Prefix
	primary := n.primary()
	for _, f := range families {
		p := *primary.of(f)
		switch {
		case !f.servedBy(n.OnlyFamily):
		case n.NodePortAddresses.Primary && p.IsValid():
			open = append(open, netip.PrefixFrom(p, p.BitLen()))
		case n.NodePortAddresses.Primary:
		case slices.ContainsFunc(n.NodePortAddresses.CIDRs, ofFamily(f)):
			open = append(open, filter(n.NodePortAddresses.CIDRs, ofFamily(f))...)
		default:
			open = append(open, netip.PrefixFrom(unspecified(f), 0))
		}
	}

	return canonical(open)
}

func unspecified(f Family) netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func ofFamily(f Family) func(netip.Prefix) bool {
	return func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f }
}

// canonical returns the ranges sorted, with host bits cleared, without ranges that lie inside
// others.
func canonical(ranges []netip.Prefix) []netip.Prefix {
	if len(ranges) == 0 {
		return nil
	}
	sorted := make([]netip.Prefix, len(ranges))
	for i, p := range ranges {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)

	// A range sorts directly after the ranges that contain it, the widest first.
	kept := sorted[:1]
	for _, p := range sorted[1:] {
		if last := kept[len(kept)-1]; !last.Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}

	return kept
}

func (p *problems) checkNode(n *Node) {
	p.service, p.kind = nil, "node"
	if f := n.OnlyFamily; f != 0 && f != IPv4 && f != IPv6 {
		p.add("onlyFamily", uint8(f), "must be IPv4 or IPv6")
	}
	p.checkAddrs("addresses", n.Addresses, anyUnicast)
	p.checkRanges("nodePortAddresses.cidrs", n.NodePortAddresses.CIDRs)
	if n.NodePortAddresses.Primary && len(n.NodePortAddresses.CIDRs) > 0 {
		p.add("nodePortAddresses.primary", true, "excludes CIDRs; give one or the other")
	}
	pods := n.LocalPods
	p.checkRanges("localPods.cidrs", pods.CIDRs)
	p.checkInterface("localPods.bridge", pods.Bridge)
	p.checkInterface("localPods.interfacePrefix", pods.InterfacePrefix)
	if len(pods.CIDRs) > 0 && pods.Bridge+pods.InterfacePrefix != "" ||
		pods.Bridge != "" && pods.InterfacePrefix != "" {
		p.add("localPods", nil, "give at most one of cidrs, bridge and interfacePrefix")
	}

	p.checkRanges("serviceCIDRs", n.ServiceCIDRs)
	checkWord(p, "noEndpoints", n.NoEndpoints, answerReject, answerReset, answerDrop)
	checkWord(p, "forbidden", n.Forbidden, answerReject, answerReset, answerDrop)
	if m := n.MasqueradeMark; m&(m-1) != 0 {
		p.add("masqueradeMark", fmt.Sprintf("%#x", m), "must be exactly one bit")
	}
}

// maxInterface is the maximum length of an interface name (IFNAMSIZ in include/uapi/linux/if.h,
// less the final zero).
const maxInterface = 15

func (p *problems) checkInterface(field, name string) {
	if len(name) > maxInterface {
		p.add(field, quote(name), fmt.Sprintf("longer than %d bytes", maxInterface))
		return
	}

	p.checkText(field, name, false)
}
