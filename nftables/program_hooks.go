package nftables

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// dispatch makes the chain that decides whether a packet is for a service. Addresses of services come before node ports.
func (b *builder) dispatch() {
	rules := []rule{join(b.in(kindService, kindService.registry), b.verdict(verdictGoto, kindService.chain))}
	for _, p := range b.nodePortPrefixes() {
		rules = append(rules, join(b.in(kindNodePort, kindNodePort.registry), b.nodeAddress(p), b.verdict(verdictGoto, kindNodePort.chain)))
	}
	b.chain(chain{name: "dispatch"}, rules...)
}

// nodePortPrefixes are the ranges of the family in which addresses of the node take node ports.
func (b *builder) nodePortPrefixes() []netip.Prefix { return ofFamily(b.f, b.rules.NodePorts) }

func ofFamily(f *family, l []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range l {
		if servicemodel.FamilyOf(p.Addr()) == f.model {
			out = append(out, p)
		}
	}
	return out
}

// nodeAddress matches packets to an address of this host in the range, except loopback.
func (b *builder) nodeAddress(p netip.Prefix) part {
	parts := []part{b.fib("daddr", fibDaddr, cmpEq), b.prefix("daddr", b.f.daddr, b.f.loopback, cmpNeq)}
	if p.Bits() > 0 {
		parts = append(parts, b.prefix("daddr", b.f.daddr, p, cmpEq))
	}
	r := join(parts...)
	return part{text: r.text, exprs: r.exprs}
}

// noEndpoints makes the chains that answer for frontends without endpoints, for the other ports of cluster IPs and for unused addresses.
func (b *builder) noEndpoints() {
	b.chain(chain{name: "no-endpoints"},
		join(b.in(kindService, kindService.prefix+setDrop), b.verdict(verdictDrop, "")),
		join(b.in(kindService, kindService.prefix+setReject), b.reject()))
	var nodeports []rule
	for _, p := range b.nodePortPrefixes() {
		nodeports = append(nodeports,
			join(b.in(kindNodePort, kindNodePort.prefix+setDrop), b.nodeAddress(p), b.verdict(verdictDrop, "")),
			join(b.in(kindNodePort, kindNodePort.prefix+setReject), b.nodeAddress(p), b.reject()))
	}
	b.chain(chain{name: "nodeport-no-endpoints"}, nodeports...)
	daddr := payload(baseNetwork, b.f.daddr, b.f.addrLen, word(0))
	unused := []rule{join(part{text: b.f.name + " daddr @" + setClusterIPs, exprs: []expr{daddr, lookup(setClusterIPs, false)}}, b.reject())}
	for _, p := range ofFamily(b.f, b.rules.ServiceCIDRs) {
		unused = append(unused, join(b.prefix("daddr", b.f.daddr, p, cmpEq), b.verdict(verdictDrop, "")))
	}
	b.chain(chain{name: "no-service"}, unused...)
}

const (
	stateNew   = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	statusDNAT = 1 << 5 // IPS_DST_NAT
)

func ctBit(text string, key, bit uint32) part {
	return part{text: text, exprs: []expr{ct(key, word(0)), bitwise(word(0), native32(bit), native32(0)), compare(cmpNeq, word(0), native32(0))}}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	isNew, isDNAT := ctBit("ct state new", ctState, stateNew), ctBit("ct status dnat", ctStatus, statusDNAT)
	jump := func(to string) part { return b.verdict(verdictJump, to) }
	if b.shape.sources {
		r := b.sources(isNew)
		b.chain(chain{"sources-prerouting", "filter", hookPrerouting, prioSources}, r)
		b.chain(chain{"sources-output", "filter", hookOutput, prioSources}, r)
	}
	b.chain(chain{"nat-prerouting", "nat", hookPrerouting, prioDNAT}, join(jump("dispatch")))
	b.chain(chain{"nat-output", "nat", hookOutput, prioDNAT}, join(jump("dispatch")))
	if len(b.shape.affinity) > 0 {
		b.chain(chain{"learn-prerouting", "filter", hookPrerouting, prioLearn}, join(isNew, isDNAT, jump(chainLearn)))
		b.chain(chain{"learn-output", "filter", hookOutput, prioLearn}, join(isNew, isDNAT, jump(chainLearn)))
	}
	b.chain(chain{"filter-input", "filter", hookInput, prioFilter}, join(isNew, jump("no-endpoints")), join(isNew, jump("nodeport-no-endpoints")))
	b.chain(chain{"filter-forward", "filter", hookForward, prioFilter}, join(isNew, jump("no-endpoints")), join(isNew, jump("no-service")))
	b.chain(chain{"filter-output", "filter", hookOutput, prioFilter}, join(isNew, jump("no-endpoints")), join(isNew, jump("no-service")))
	b.postrouting(isDNAT)
}

func (b *builder) sources(isNew part) rule {
	text, load, l := b.loadKey(kindService)
	load = append(load, payload(baseNetwork, b.f.saddr, b.f.addrLen, word(l)), lookup(setSources, true))
	return join(isNew, b.in(kindService, setRestricted),
		part{text: fmt.Sprintf("%s . %s saddr != @%s", text, b.f.name, setSources), exprs: load}, b.verdict(verdictDrop, ""))
}

// postrouting makes the chain that masquerades what was marked, taking the mark away, and connections of endpoints to themselves.
func (b *builder) postrouting(isDNAT part) {
	m := b.rules.MasqueradeMark
	masq := part{text: "masquerade fully-random", exprs: []expr{masquerade()}}
	marked := part{text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x", m, m, m),
		exprs: []expr{meta(metaMark, word(0)), bitwise(word(0), native32(m), native32(0)), compare(cmpEq, word(0), native32(m)),
			meta(metaMark, word(0)), bitwise(word(0), native32(^uint32(0)), native32(m)), metaSet(metaMark, word(0))}}
	f := b.f
	hairpin := part{text: fmt.Sprintf("%s saddr . %s daddr @%s", f.name, f.name, setHairpins),
		exprs: []expr{payload(baseNetwork, f.saddr, f.addrLen, word(0)), payload(baseNetwork, f.daddr, f.addrLen, word(f.addrLen)), lookup(setHairpins, false)}}
	b.chain(chain{"nat-postrouting", "nat", hookPostrouting, prioSNAT}, join(marked, masq), join(isDNAT, hairpin, masq))
}

// appendRule appends the expressions of a rule to a message.
func appendRule(b *nfnl.Batch, r *rule) {
	l := b.Nest(4) // NFTA_RULE_EXPRESSIONS
	for _, e := range r.exprs {
		e(b)
	}
	b.End(l)
}
