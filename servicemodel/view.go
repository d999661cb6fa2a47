package servicemodel

import (
	"net/netip"
	"slices"
)

// view is the part of a [Node] that the resolution of a single service depends on. When it changes,
// every service is resolved again.
type view struct {
	name, zone    string
	only          Family
	primary       perFamily[netip.Addr]
	detectsPods   perFamily[bool]
	masqueradeAll bool
	localhost     bool
}

// perFamily holds one value for each family.
type perFamily[T any] struct{ v4, v6 T }

func (p *perFamily[T]) of(f Family) *T {
	if f == IPv6 {
		return &p.v6
	}
	return &p.v4
}

// families in the order in which everything is sorted.
var families = [...]Family{IPv4, IPv6}

func (n *Node) view() view {
	v := view{name: n.Name, zone: n.Zone, only: n.OnlyFamily, primary: n.primary(),
		masqueradeAll: n.MasqueradeAll, localhost: n.loopback()}
	for _, f := range families {
		*v.detectsPods.of(f) = n.LocalPods.detects(f)
	}
	return v
}

// servedBy reports whether a node serves the family that serves only one, or both if only is zero.
func (f Family) servedBy(only Family) bool { return only == 0 || only == f }

// primary returns the first address of each family. It is invalid if there is none.
func (n *Node) primary() (p perFamily[netip.Addr]) {
	for _, a := range n.Addresses {
		if first := p.of(FamilyOf(a)); !first.IsValid() {
			*first = a
		}
	}
	return p
}

// detects reports whether d can tell pods of family f. An interface serves both families, a range
// its own.
func (d PodDetector) detects(f Family) bool {
	return d.Bridge != "" || d.InterfacePrefix != "" || slices.ContainsFunc(d.CIDRs, ofFamily(f))
}

// local reports whether e runs on this node.
func (v *view) local(e *Endpoint) bool { return e.Node != "" && e.Node == v.name }

// loopback reports whether IPv4 loopback addresses may answer at all. They may if node ports may
// answer there.
func (n *Node) loopback() bool {
	return n.LocalhostNodePorts && slices.ContainsFunc(n.nodePorts(), loopback4.Overlaps)
}

// loopback4 are the loopback addresses of IPv4.
var loopback4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)

// rules returns the decisions that hold for the whole node.
func (n *Node) rules() Rules {
	r := Rules{
		MasqueradeMark:       n.MasqueradeMark,
		LocalPods:            n.LocalPods,
		OnlyFamily:           n.OnlyFamily,
		NodePorts:            n.nodePorts(),
		ServiceCIDRs:         n.served(n.ServiceCIDRs),
		LocalhostNodePorts:   n.LocalhostNodePorts,
		MasqueradeNeighbours: n.MasqueradeNeighbours,
		NoEndpoints:          answer(n.NoEndpoints, answerReject),
		Forbidden:            answer(n.Forbidden, answerDrop),
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

// answer returns an answer, or "" if it is the default.
func answer(a, byDefault string) string {
	if a == byDefault {
		return ""
	}
	return a
}

// served returns the ranges of the families that the node serves, in canonical form.
func (n *Node) served(ranges []netip.Prefix) []netip.Prefix {
	return canonical(slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool {
		return !FamilyOf(p.Addr()).servedBy(n.OnlyFamily)
	}))
}

// nodePorts returns the ranges of [Rules.NodePorts]. If Primary is set and a family has no address,
// nothing answers there; kube-proxy would answer at all addresses.
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
			open = append(open, slices.DeleteFunc(slices.Clone(n.NodePortAddresses.CIDRs),
				ofFamily(other(f)))...)
		default:
			open = append(open, everything(f))
		}
	}
	return canonical(open)
}

func other(f Family) Family {
	if f == IPv4 {
		return IPv6
	}
	return IPv4
}

// everything returns the range of all addresses of f.
func everything(f Family) netip.Prefix {
	return netip.PrefixFrom(unspecified(f), 0)
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

// canonical returns the ranges sorted, with host bits cleared, without ranges inside others.
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
