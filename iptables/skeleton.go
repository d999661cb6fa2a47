package iptables

import (
	"hash/maphash"
	"net/netip"

	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// treeID is one of the trees of a family.
type treeID uint8

const (
	natServices      treeID = iota // frontends with an address, to their chains
	natNodePorts                   // frontends without
	natHairpins                    // endpoints that may reach themselves
	filterServices                 // frontends with an address that are rejected or dropped
	filterNodePorts                // frontends without
	filterSources                  // frontends with source ranges
	filterClusterIPs               // cluster IPs
	treeCount
)

// layout knows where everything is, for one prefix.
type layout struct {
	names    names
	dispatch [2][treeCount]*dispatch
	seed     maphash.Seed // of uses
}

func newLayout(prefix string) *layout {
	l := &layout{names: names{prefix}, seed: maphash.MakeSeed()}
	n := l.names
	for i, f := range nft.Families {
		a := f.AddrLen
		l.dispatch[i] = [treeCount]*dispatch{
			natServices: {names: n, f: f, table: nat, root: n.services(), step: stepService,
				addr: a, ports: true},
			natNodePorts: {names: n, f: f, table: nat, root: n.nodePorts(), step: stepNodePort,
				ports: true},
			natHairpins: {names: n, f: f, table: nat, root: n.hairpin(), step: stepHairpin,
				addr: a, source: true},
			filterServices: {names: n, f: f, table: filter, root: n.services(), step: stepService,
				addr: a, ports: true},
			filterNodePorts: {names: n, f: f, table: filter, root: n.nodePorts(),
				step: stepNodePort, ports: true},
			filterSources: {names: n, f: f, table: filter, root: n.sourceRanges(),
				step: stepSources, addr: a, ports: true},
			filterClusterIPs: {names: n, f: f, table: filter, root: n.clusterIPs(),
				step: stepClusterIP, addr: a},
		}
	}
	return l
}

// fixedChain is a chain that is there whatever the services are.
type fixedChain struct {
	table tableID
	name  string
	rules []rule
	// shared says that others have rules in the chain, too: only ours are looked at.
	shared bool
}

// fixed returns the fixed chains of a family, but for those that a tree begins in.
func (l *layout) fixed(f *nft.Family, s *state) []fixedChain {
	n, r := l.names, &s.rules
	chains := []fixedChain{
		{table: nat, name: n.markMasq(), rules: []rule{l.mark(r)}},
		{table: nat, name: n.masqOffPod(), rules: l.masqOffPod(f, r)},
		{table: nat, name: n.postrouting(), rules: l.postrouting(r)},
		{table: filter, name: n.forward(), rules: l.forward(r)},
	}
	if f.Model == servicemodel.IPv4 {
		settings := fixedChain{table: nat, name: n.settings(), rules: l.settingRules(s)}
		chains = append(chains, settings)
	}
	if l.localhost(f, r) {
		chains = append(chains, fixedChain{table: filter, name: n.localnet(),
			rules: []rule{guard(f)}, shared: true})
	}
	for _, t := range tables {
		for _, b := range baseChains(t) {
			chains = append(chains, fixedChain{table: t, name: b.Name,
				rules: l.jumps(f, t, b.Hook, r), shared: true})
		}
	}
	return chains
}

// localhost reports whether node ports answer at loopback addresses.
func (l *layout) localhost(f *nft.Family, r *servicemodel.Rules) bool {
	return f.Model == servicemodel.IPv4 && loopback.Wanted(r)
}

// bit returns the bit of the mark that asks for masquerading. Who takes over kube-proxy's chains
// takes over its bit, too: kubelet before Kubernetes 1.28 keeps these chains in order with it, and
// others set it to be masqueraded. Any other instance keeps away from it.
func (l *layout) bit(r *servicemodel.Rules) uint32 {
	if r.MasqueradeMark == servicemodel.DefaultMasqueradeMark && l.names.prefix == DefaultPrefix {
		return kubeProxyBit
	}
	return r.MasqueradeMark
}

const kubeProxyBit uint32 = 1 << 14

// mark sets the bit that asks for masquerading.
func (l *layout) mark(r *servicemodel.Rules) rule {
	return rule{target: targetMark, set: markSet{l.bit(r), l.bit(r)}}
}

// masqOffPod marks what does not come from pods.
func (l *layout) masqOffPod(f *nft.Family, r *servicemodel.Rules) []rule {
	var rules []rule
	for _, m := range l.pods(f, r) {
		m.target = targetReturn
		rules = append(rules, m)
	}
	return append(rules, l.mark(r))
}

// postrouting masquerades what was marked and takes the mark away, so that a packet that comes by
// again is not masqueraded again; and it masquerades connections of endpoints to themselves.
func (l *layout) postrouting(r *servicemodel.Rules) []rule {
	unmarked := markMatch{value: l.bit(r), mask: l.bit(r), not: true}
	return []rule{
		{mark: unmarked, state: stateMatch{states: ctDNAT}, target: targetJump,
			chain: l.names.hairpin()},
		{mark: unmarked, target: targetReturn},
		{target: targetMark, set: markSet{l.bit(r), 0}},
		{comment: "kubernetes service traffic requiring SNAT", target: targetMasquerade},
	}
}

// forward accepts what belongs to services where the policy of FORWARD is to drop, as kube-proxy
// does. Unlike kube-proxy it does not drop what conntrack calls invalid.
func (l *layout) forward(r *servicemodel.Rules) []rule {
	return []rule{
		{comment: "kubernetes forwarding rules", mark: markMatch{value: l.bit(r),
			mask: l.bit(r)}, target: targetAccept},
		{comment: "kubernetes forwarding conntrack rule",
			state: stateMatch{states: ctRelated | ctEstablished}, target: targetAccept},
	}
}

// guard drops packets that come from elsewhere to a loopback address, which route_localnet would
// let in (CVE-2020-8558).
func guard(f *nft.Family) rule {
	return rule{
		notSrc: true, src: f.Loopback, dst: f.Loopback,
		state:   stateMatch{states: ctRelated | ctEstablished | ctDNAT, not: true},
		comment: "block incoming localnet connections", target: targetDrop,
	}
}

// jumps returns our rules in a base chain, in the order in which they must come.
func (l *layout) jumps(f *nft.Family, t tableID, hook uint32, r *servicemodel.Rules) []rule {
	n := l.names
	to := func(comment, chain string) rule {
		return rule{comment: comment, target: targetJump, chain: chain}
	}
	onlyNew := func(r rule) rule { r.state.states = ctNew; return r }
	if t == nat {
		if hook == nft.HookPostrouting {
			return []rule{to("kubernetes postrouting rules", n.postrouting())}
		}
		return []rule{to("kubernetes service portals", n.services())}
	}
	var rules []rule
	if l.localhost(f, r) && hook != nft.HookForward {
		// kube-proxy and kubelet have one without a comment
		rules = append(rules, to("kubernetes localhost node ports", n.localnet()))
	}
	switch hook {
	case nft.HookInput:
		return append(rules, onlyNew(to("kubernetes service portals", n.services())))
	case nft.HookForward:
		rules = append(rules, to("kubernetes forwarding rules", n.forward()))
	}
	return append(rules, onlyNew(to("kubernetes service portals and cluster IPs", n.clusterIPs())))
}

// around returns the rules before and after those of a tree in its first chain.
func (l *layout) around(f *nft.Family, id treeID, r *servicemodel.Rules) (before, after []rule) {
	n := l.names
	switch id {
	case natServices:
		return nil, l.nodePorts(f, r)
	case natNodePorts:
		return l.notLoopback(f, r), nil
	case filterServices:
		return []rule{{comment: "kubernetes load balancer firewall", target: targetJump,
			chain: n.sourceRanges()}}, l.nodePorts(f, r)
	case filterNodePorts:
		return l.notLoopback(f, r), nil
	case filterClusterIPs:
		before = []rule{{comment: "kubernetes service portals", target: targetJump,
			chain: n.services()}}
		for _, p := range r.ServiceCIDRs {
			if servicemodel.FamilyOf(p.Addr()) == f.Model {
				after = append(after,
					rule{dst: anyIfWhole(p), comment: "unused address of the service range",
						target: targetDrop})
			}
		}
	}
	return before, after
}

// nodePorts leads packets to addresses of the node to the node ports.
func (l *layout) nodePorts(f *nft.Family, r *servicemodel.Rules) []rule {
	var rules []rule
	for _, p := range r.NodePorts {
		if servicemodel.FamilyOf(p.Addr()) == f.Model {
			rules = append(rules, rule{dst: anyIfWhole(p), dstLocal: true, target: targetJump,
				chain: l.names.nodePorts(),
				comment: "kubernetes service nodeports; NOTE: this must be the last rule in this " +
					"chain"})
		}
	}
	return rules
}

// notLoopback sends packets to loopback addresses back.
func (l *layout) notLoopback(f *nft.Family, r *servicemodel.Rules) []rule {
	if l.localhost(f, r) {
		return nil
	}
	return []rule{{dst: f.Loopback, target: targetReturn}}
}

// anyIfWhole returns p, or the zero prefix if it is the whole family: iptables has no way of saying
// /0.
func anyIfWhole(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p.Masked()
}

// hairpinRule masquerades the connections of an endpoint to itself.
func hairpinRule(a netip.Addr) rule {
	p := netip.PrefixFrom(a, a.BitLen())
	return rule{src: p, dst: p, target: targetMasquerade}
}

// clusterIPRule rejects what is for a cluster IP and for none of its services.
func clusterIPRule(a netip.Addr) rule {
	return rule{dst: netip.PrefixFrom(a, a.BitLen()), target: targetReject}
}
