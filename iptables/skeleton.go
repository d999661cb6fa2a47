package iptables

import (
	"hash/maphash"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// treeKind is one of the trees of a family.
type treeKind uint8

const (
	natServices        treeKind = iota // frontends with an address, to their chains
	natNodePorts                       // frontends without an address
	natHairpins                        // endpoints that may reach themselves
	filterServices                     // frontends with an address that are rejected or dropped
	filterNodePorts                    // frontends without an address that are rejected or dropped
	filterSources                      // frontends with source ranges
	filterClusterIPs                   // cluster IPs
	filterHealthChecks                 // health check node ports
	natRanges                          // frontends at ranges of ports
	filterRanges                       // ranges that are rejected, dropped or restricted
	treeCount
)

// layout describes all chains of an instance with one prefix.
type layout struct {
	names names
	trees [2 * treeCount]*dispatch // of both families
	seed  maphash.Seed             // for the hashes of uses
}

func newLayout(prefix string) *layout {
	l := &layout{names: names{prefix}, seed: maphash.MakeSeed()}
	n := l.names
	for i, f := range nft.Families {
		a := f.AddrLen
		inNAT, inFilter := nat.of(f), filter.of(f)
		for kind, d := range [treeCount]dispatch{
			natServices:  {table: inNAT, root: n.services(), step: stepService, addr: a},
			natNodePorts: {table: inNAT, root: n.nodePorts(), step: stepNodePort},
			natHairpins: {table: inNAT, root: n.hairpin(), step: stepHairpin, addr: a,
				source: true},
			filterServices:  {table: inFilter, root: n.services(), step: stepService, addr: a},
			filterNodePorts: {table: inFilter, root: n.nodePorts(), step: stepNodePort},
			filterSources: {table: inFilter, root: n.sourceRanges(), step: stepSources,
				addr: a},
			filterClusterIPs: {table: inFilter, root: n.clusterIPs(), step: stepClusterIP,
				addr: a},
			filterHealthChecks: {table: inFilter, root: n.healthChecks(), step: stepHealthCheck},
			natRanges:          {table: inNAT, root: n.ranges(), step: stepRange, addr: a},
			filterRanges:       {table: inFilter, root: n.ranges(), step: stepRange, addr: a},
		} {
			d.names, d.f, d.kind, d.place = n, f, treeKind(kind), i*int(treeCount)+kind
			l.trees[d.place] = &d
		}
	}

	return l
}

// tree returns the description of one tree of a family.
func (l *layout) tree(f *nft.Family, kind treeKind) *dispatch {
	return l.treesOf(f)[kind]
}

// treesOf returns the descriptions of the trees of a family.
func (l *layout) treesOf(f *nft.Family) []*dispatch {
	if f == nft.IPv6 {
		return l.trees[treeCount:]
	}
	return l.trees[:treeCount]
}

// fixedChain is a chain with its desired rules.
type fixedChain struct {
	id    chainID
	rules []rule
	// shared says that the chain may also contain rules of other programs. Only our rules are
	// compared.
	shared bool
}

// homeOf returns the family with the settings and the version of an instance: IPv4, unless the node
// serves only IPv6.
func homeOf(r *servicemodel.Rules) *nft.Family {
	if nft.IPv4.ServedBy(r) {
		return nft.IPv4
	}
	return nft.IPv6
}

// settingsIn returns the chain with the settings in a reading.
func (l *layout) settingsIn(r *raw) chainID {
	id := nat6.chain(l.names.settings())
	if four := nat4.chain(id.name); r.chains[four] != nil || r.chains[id] == nil {
		return four
	}
	return id
}

// fixed returns the fixed chains of a family, except the first chains of trees.
func (l *layout) fixed(f *nft.Family, s *state) []fixedChain {
	n, r := l.names, &s.rules
	inNAT, inFilter := nat.of(f), filter.of(f)
	chains := []fixedChain{
		{id: inNAT.chain(n.markMasq()), rules: []rule{l.mark(r)}},
		{id: inNAT.chain(n.masqOffPod()), rules: l.masqOffPod(f, r)},
		{id: inNAT.chain(n.postrouting()), rules: l.postrouting(r)},
		{id: inFilter.chain(n.forward()), rules: l.forward(r)},
	}
	if f == homeOf(r) {
		chains = append(chains,
			fixedChain{id: inNAT.chain(n.settings()), rules: l.settingRules(s)})
	}

	if l.localhost(f, r) {
		chains = append(chains, fixedChain{id: inFilter.chain(n.localnet()),
			rules: []rule{guard(f)}, shared: true})
	}

	for _, t := range tablesOf(f) {
		for _, b := range baseChains(t.kind()) {
			chains = append(chains, fixedChain{id: t.chain(b.Name),
				rules: l.jumps(t, b.Hook, s), shared: true})
		}
	}

	return chains
}

// localhost reports whether node ports answer at loopback addresses.
func (l *layout) localhost(f *nft.Family, r *servicemodel.Rules) bool {
	return f.Model == servicemodel.IPv4 && sysctls.Loopback(r) != nil
}

// bit returns the bit of the mark that requests masquerading. An instance that takes over
// kube-proxy's chains also takes over its bit: the kubelet before Kubernetes 1.28 maintains these
// chains with this bit, and other programs set it to have packets masqueraded. Any other instance
// uses a different bit.
func (l *layout) bit(r *servicemodel.Rules) uint32 {
	if r.MasqueradeMark == servicemodel.DefaultMasqueradeMark && l.names.prefix == defaultPrefix {
		return kubeProxyBit
	}
	return r.MasqueradeMark
}

const kubeProxyBit uint32 = 1 << 14

// mark sets the bit that requests masquerading.
func (l *layout) mark(r *servicemodel.Rules) rule {
	return rule{target: targetMark, set: markSet{l.bit(r), l.bit(r)}}
}

// masqOffPod marks packets that do not come from pods.
func (l *layout) masqOffPod(f *nft.Family, r *servicemodel.Rules) []rule {
	var rules []rule
	for _, m := range l.pods(f, r) {
		m.target = targetReturn
		rules = append(rules, m)
	}

	return append(rules, l.mark(r))
}

// postrouting masquerades marked packets and clears the mark, so that a packet that passes a second
// time is not masqueraded again. It also masquerades connections of endpoints to themselves.
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

// forward accepts packets of services even if the policy of FORWARD is drop, like kube-proxy.
// Unlike kube-proxy, it does not drop packets that conntrack considers invalid.
func (l *layout) forward(r *servicemodel.Rules) []rule {
	return []rule{
		{comment: "kubernetes forwarding rules", mark: markMatch{value: l.bit(r),
			mask: l.bit(r)}, target: targetAccept},
		{comment: "kubernetes forwarding conntrack rule",
			state: stateMatch{states: ctRelated | ctEstablished}, target: targetAccept},
	}
}

// guard drops packets from elsewhere to a loopback address, which route_localnet would let in
// (CVE-2020-8558).
func guard(f *nft.Family) rule {
	return rule{
		notSrc: true, src: f.Loopback, dst: f.Loopback,
		state:   stateMatch{states: ctRelated | ctEstablished | ctDNAT, not: true},
		comment: "block incoming localnet connections", target: targetDrop,
	}
}

// jumps returns our rules in a base chain, in the required order.
func (l *layout) jumps(t table, hook uint32, s *state) []rule {
	n, f := l.names, t.family()
	to := func(comment, chain string) rule {
		return rule{comment: comment, target: targetJump, chain: chain}
	}
	onlyNew := func(r rule) rule { r.state.states = ctNew; return r }
	if t.kind() == nat {
		if hook == nft.HookPostrouting {
			return []rule{to("kubernetes postrouting rules", n.postrouting())}
		}
		return []rule{to("kubernetes service portals", n.services())}
	}

	var rules []rule
	if l.localhost(f, &s.rules) && hook != nft.HookForward {
		// kube-proxy and the kubelet have this rule without a comment
		rules = append(rules, to("kubernetes localhost node ports", n.localnet()))
	}

	switch hook {
	case nft.HookInput:
		if s.has(l.tree(f, filterHealthChecks)) {
			checks := to("kubernetes health check service ports", n.healthChecks())
			checks.proto = servicemodel.TCP
			rules = append(rules, checks)
		}

		return append(rules, onlyNew(to("kubernetes service portals", n.services())))
	case nft.HookForward:
		rules = append(rules, to("kubernetes forwarding rules", n.forward()))
	}

	return append(rules, onlyNew(to("kubernetes service portals and cluster IPs", n.clusterIPs())))
}

// around returns the rules in a tree's first chain before and after the rules of the tree.
func (l *layout) around(d *dispatch, s *state) (before, after []rule) {
	n, f, r := l.names, d.f, &s.rules
	switch d.kind {
	case natServices:
		return nil, l.toRanges(d, s, l.nodePorts(f, r))
	case natNodePorts:
		return l.notLoopback(f, r), nil
	case filterServices:
		return []rule{{comment: "kubernetes load balancer firewall", target: targetJump,
			chain: n.sourceRanges()}}, l.toRanges(d, s, l.nodePorts(f, r))
	case filterNodePorts:
		return l.notLoopback(f, r), nil
	case filterClusterIPs:
		before = []rule{{comment: "kubernetes service portals", target: targetJump,
			chain: n.services()}}
		for _, p := range f.Own(r.ServiceCIDRs) {
			after = append(after, rule{dst: anyIfWhole(p), target: targetDrop,
				comment: "unused address of the service range"})
		}
	}

	return before, after
}

// nodePorts sends packets to addresses of the node to the node ports.
func (l *layout) nodePorts(f *nft.Family, r *servicemodel.Rules) []rule {
	var rules []rule
	for _, p := range f.Own(r.NodePorts) {
		rules = append(rules, rule{dst: anyIfWhole(p), dstLocal: true, target: targetJump,
			chain: l.names.nodePorts(),
			comment: "kubernetes service nodeports; NOTE: this must be the last rule in this " +
				"chain"})
	}

	return rules
}

// notLoopback returns packets to loopback addresses to the calling chain.
func (l *layout) notLoopback(f *nft.Family, r *servicemodel.Rules) []rule {
	if l.localhost(f, r) {
		return nil
	}
	return []rule{{dst: f.Loopback, target: targetReturn}}
}

// anyIfWhole returns p, or the zero prefix if p covers the whole family, because iptables cannot
// express /0.
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

// clusterIPRule rejects packets to a cluster IP that matched no service port.
func clusterIPRule(a netip.Addr) rule {
	return rule{dst: netip.PrefixFrom(a, a.BitLen()), target: targetReject}
}

// healthCheckRule accepts a load balancer's packets to a health check node port, at any address and
// in any conntrack state. So the load balancer continues to use the node even if INPUT drops all
// other packets.
func healthCheckRule(h *servicemodel.HealthCheck) rule {
	return rule{proto: servicemodel.TCP, ports: single(h.Port), target: targetAccept,
		comment: h.Service.String() + healthCheckComment}
}

const healthCheckComment = " health check node port"
