package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// unit is the rules of one service port in one family.
type unit struct {
	chains []fixedChain // chains that belong to the unit alone
	leaves []leaf
}

// leaf is an entry of the unit in a tree.
type leaf struct {
	tree  *dispatch
	key   string
	rules []rule
}

// unitBuilder builds the unit of a service port.
type unitBuilder struct {
	l       *layout
	f       *nft.Family
	rules   *servicemodel.Rules
	name    servicemodel.PortName
	pools   [verdictCount]*servicemodel.Pool // the pools over which verdicts balance
	entered [verdictCount]bool               // pools to which a rule sends packets
	entries []entry
	sources [len(kinds)][]restriction
	unit    unit
}

const verdictCount = servicemodel.BalanceLocal + 1

// balancing are the verdicts that balance.
var balancing = [2]servicemodel.Verdict{servicemodel.BalanceCluster, servicemodel.BalanceLocal}

// restriction describes a chain KUBE-FW-…: the allowed sources, and the chain to which their
// packets continue.
type restriction struct {
	sources []netip.Prefix
	to      string
}

// entry describes a chain KUBE-EXT-…: what happens to packets of each origin.
type entry struct {
	internal, external servicemodel.Verdict
	masquerade         servicemodel.Origins
}

// unit returns the unit of a service port in a family. frontends are the frontends of the family,
// in the order of their keys.
func (l *layout) unit(f *nft.Family, t *servicemodel.Table, frontends []*servicemodel.Frontend,
	r *servicemodel.Rules) unit {
	if len(frontends) == 0 {
		return unit{}
	}
	b := unitBuilder{l: l, f: f, rules: r, name: frontends[0].Service}
	for _, v := range balancing {
		b.pools[v] = t.Pool(servicemodel.PoolID{Service: b.name, Family: f.Model,
			Local: v == servicemodel.BalanceLocal})
	}

	for _, fe := range frontends {
		b.frontend(fe)
	}
	for i := range b.entries {
		b.entryChain(i)
	}
	for _, v := range balancing {
		if b.entered[v] {
			b.poolChain(v, frontends)
		}
	}

	return b.unit
}

// balances reports whether v balances over a pool that exists.
func (b *unitBuilder) balances(v servicemodel.Verdict) bool {
	return v.Balances() && b.pools[v] != nil
}

// keyRule returns a rule that matches packets to a frontend.
func keyRule(k servicemodel.FrontendKey) rule {
	r := rule{proto: k.Protocol, ports: portRange{k.Port, k.LastPort()}}
	if !k.NodePort() {
		r.dst = netip.PrefixFrom(k.Addr, k.Addr.BitLen())
	}
	return r
}

// frontend adds the leaves of a frontend. Every frontend has a leaf in nat, even if it is not
// balanced: nat accepts its packets, so that they do not match a node port, and filter handles
// them.
func (b *unitBuilder) frontend(fe *servicemodel.Frontend) {
	natTree, filterTree := natServices, filterServices
	switch {
	case fe.Key.NodePort():
		natTree, filterTree = natNodePorts, filterNodePorts
	case fe.Key.EndPort != 0:
		natTree, filterTree = natRanges, filterRanges
	}

	r := keyRule(fe.Key)

	// With route_localnet other hosts can send to loopback addresses, too. A packet with a forged
	// address of this node does not get past routing (fib_validate_source).
	r.srcLocal = fe.Key.Addr.IsLoopback()
	r.comment = rendering.Comment(fe)
	r.target = targetAccept
	if b.balances(fe.Internal) || b.balances(fe.External) {
		r.target, r.chain = targetJump, b.target(fe)
		if fe.Sources != nil {
			r.chain = b.sourcesChain(nat, fe, r.chain)
		}
	}

	b.leaf(natTree, fe.Key, r)
	rules := b.refuse(fe)
	if fe.Sources != nil && !fe.Key.NodePort() {
		r := keyRule(fe.Key)
		r.comment = sourcesComment(fe)
		r.target, r.chain = targetGoto, b.sourcesChain(filter, fe, "")
		if fe.Key.EndPort == 0 {
			b.leaf(filterSources, fe.Key, r)
		} else {
			r.target = targetJump
			rules = append([]rule{r}, rules...)
		}
	}

	if rules != nil {
		b.leaf(filterTree, fe.Key, rules...)
	}
}

func (b *unitBuilder) leaf(kind treeKind, k servicemodel.FrontendKey, rules ...rule) {
	d := b.l.tree(b.f, kind)
	b.unit.leaves = append(b.unit.leaves, leaf{d, d.key(k), rules})
}

// chain adds a chain that belongs to the unit alone.
func (b *unitBuilder) chain(t tableKind, name string, rules []rule) {
	b.unit.chains = append(b.unit.chains, fixedChain{id: t.of(b.f).chain(name), rules: rules})
}

// usesPool reports whether packets to the frontend are sent straight to the chain of its pool. They
// are if nothing depends on their origin except the masquerading of a cluster IP. As in kube-proxy,
// the pool's chain handles that.
func (b *unitBuilder) usesPool(fe *servicemodel.Frontend) bool {
	if fe.Internal != fe.External {
		return false
	}
	switch fe.Masquerade {
	case 0:
		return true
	case servicemodel.FromAnywhere, servicemodel.FromHost | servicemodel.FromOutside:
		return fe.Kind == servicemodel.ClusterIP
	}

	return false
}

// target returns the chain for packets to a frontend from any allowed source.
func (b *unitBuilder) target(fe *servicemodel.Frontend) string {
	if b.usesPool(fe) {
		return b.pool(fe.Internal)
	}
	e := entry{fe.Internal, fe.External, fe.Masquerade}
	i := slices.Index(b.entries, e)
	if i < 0 {
		i = len(b.entries)
		b.entries = append(b.entries, e)
	}

	return b.variant(kindEntry, i)
}

// variant is the name of the i-th chain of a kind. A service port rarely has more than one.
func (b *unitBuilder) variant(kind string, i int) string {
	if i == 0 {
		return b.l.names.service(kind, b.name, "")
	}
	return b.l.names.service(kind, b.name, "/"+strconv.Itoa(i))
}

// pool returns the chain of the pool over which a verdict balances.
func (b *unitBuilder) pool(v servicemodel.Verdict) string {
	b.entered[v] = true
	return b.l.names.service(kindOfPool(v), b.name, "")
}

func kindOfPool(v servicemodel.Verdict) string {
	if v == servicemodel.BalanceLocal {
		return kindLocal
	}
	return kindCluster
}

// sourcesChain returns the chain that accepts only the allowed sources of a frontend: in nat they
// continue to the given chain, in filter they return to the calling chain.
func (b *unitBuilder) sourcesChain(t tableKind, fe *servicemodel.Frontend, to string) string {
	i := slices.IndexFunc(b.sources[t], func(r restriction) bool {
		return r.to == to && slices.Equal(r.sources, fe.Sources)
	})
	if i >= 0 {
		return b.variant(kindSources, i)
	}
	name := b.variant(kindSources, len(b.sources[t]))
	b.sources[t] = append(b.sources[t], restriction{fe.Sources, to})
	pass, rest := rule{target: targetReturn}, rule{target: targetDrop}
	if t == nat {
		pass, rest = rule{target: targetGoto, chain: to}, rule{target: targetAccept}
	}
	rest.comment = sourcesComment(fe)
	var rules []rule
	for _, s := range fe.Sources {
		pass.src = anyIfWhole(s)
		rules = append(rules, pass)
	}

	b.chain(t, name, append(rules, rest))
	return name
}

func sourcesComment(fe *servicemodel.Frontend) string {
	return fe.Service.String() + " source ranges"
}

// origin is an origin of packets: a rule that recognizes it, and the treatment of its packets.
type origin struct {
	is      servicemodel.Origins
	match   rule
	verdict servicemodel.Verdict
}

// origins returns the origins in the order in which they must be tested, the last without a match.
func (b *unitBuilder) origins(internal, external servicemodel.Verdict) (l []origin) {
	for _, m := range b.l.pods(b.f, b.rules) {
		l = append(l, origin{servicemodel.FromPods, m, internal})
	}
	return append(l, origin{servicemodel.FromHost, rule{srcLocal: true}, internal},
		origin{servicemodel.FromOutside, rule{}, external})
}

// pods returns rules that match packets from pods, or none if the node cannot detect pods.
func (l *layout) pods(f *nft.Family, r *servicemodel.Rules) []rule {
	var m []rule
	for _, c := range f.Own(r.LocalPods.CIDRs) {
		m = append(m, rule{src: anyIfWhole(c)})
	}
	if n := r.LocalPods.Bridge; n != "" {
		m = append(m, rule{in: n})
	}
	if n := r.LocalPods.InterfacePrefix; n != "" {
		m = append(m, rule{in: n + "+"})
	}
	return m
}

// entryChain adds the chain that chooses the pool by a packet's origin, and decides whether the
// packet is masqueraded.
func (b *unitBuilder) entryChain(i int) {
	e, name, what := b.entries[i], b.variant(kindEntry, i), b.name.String()
	if e.internal == e.external && e.masquerade == servicemodel.FromAnywhere {
		b.chain(nat, name, []rule{
			{comment: "masquerade traffic for " + what + " external destinations",
				target: targetJump, chain: b.l.names.markMasq()},
			{target: targetGoto, chain: b.pool(e.internal)},
		})
		return
	}

	var rules []rule
	words := map[servicemodel.Origins]string{
		servicemodel.FromPods: "pod traffic for ",
		servicemodel.FromHost: "traffic of the node for ", servicemodel.FromOutside: "traffic for ",
	}
	for _, o := range b.origins(e.internal, e.external) {
		m := o.match
		m.comment = words[o.is] + what
		if !b.balances(o.verdict) {
			m.target = targetAccept
			rules = append(rules, m)
			continue
		}

		if e.masquerade&o.is != 0 {
			m.target, m.chain = targetJump, b.l.names.markMasq()
			rules = append(rules, m)
		}

		m.target, m.chain = targetGoto, b.pool(o.verdict)
		rules = append(rules, m)
	}

	b.chain(nat, name, rules)
}

// refuse returns the rules that reject or drop packets to a frontend, or nil if there are none.
// Balanced packets never match them, because DNAT has changed their address.
func (b *unitBuilder) refuse(fe *servicemodel.Frontend) []rule {
	base := keyRule(fe.Key)
	one := func(m rule, v servicemodel.Verdict) rule {
		m.dst, m.proto, m.ports = base.dst, base.proto, base.ports
		m.target, m.comment = targetReject, fe.Service.String()+" has no endpoints"
		if m.proto == servicemodel.TCP && b.rules.NoEndpoints == "reset" {
			m.target = targetReset
		}
		if v == servicemodel.Drop {
			m.target, m.comment = targetDrop, fe.Service.String()+" has no local endpoints"
		}
		return m
	}

	switch {
	case fe.Internal.Balances() && fe.External.Balances():
		return nil
	case fe.Internal.Balances(), fe.Internal == fe.External:
		return []rule{one(rule{}, fe.External)}
	case fe.External.Balances():
		return []rule{one(rule{}, fe.Internal)}
	}

	var rules []rule
	for _, o := range b.origins(fe.Internal, fe.External) {
		rules = append(rules, one(o.match, o.verdict))
	}
	return rules
}
