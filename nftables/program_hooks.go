package nftables

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// dispatch makes the chain that decides whether a packet is for a service. Addresses of services come before node ports.
func (b *builder) dispatch() {
	rules := []rule{join(b.in(kindService, kindService.registry), b.verdict(nftwire.VerdictGoto, kindService.chain))}
	for _, p := range b.nodePortPrefixes() {
		rules = append(rules, join(b.in(kindNodePort, kindNodePort.registry), b.nodeAddress(p), b.verdict(nftwire.VerdictGoto, kindNodePort.chain)))
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
	parts := []part{b.fib("daddr", nftwire.FIBDaddr, nftwire.CmpEq), b.prefix("daddr", b.f.daddr, b.f.loopback, nftwire.CmpNeq)}
	if p.Bits() > 0 {
		parts = append(parts, b.prefix("daddr", b.f.daddr, p, nftwire.CmpEq))
	}
	r := join(parts...)
	return part{text: r.text, exprs: r.exprs}
}

// noEndpoints makes the chains that answer for frontends without endpoints, for the other ports of cluster IPs and for unused addresses.
func (b *builder) noEndpoints() {
	b.chain(chain{name: "no-endpoints"},
		join(b.in(kindService, kindService.prefix+setDrop), b.verdict(nftwire.VerdictDrop, "")),
		join(b.in(kindService, kindService.prefix+setReject), b.reject()))
	var nodeports []rule
	for _, p := range b.nodePortPrefixes() {
		nodeports = append(nodeports,
			join(b.in(kindNodePort, kindNodePort.prefix+setDrop), b.nodeAddress(p), b.verdict(nftwire.VerdictDrop, "")),
			join(b.in(kindNodePort, kindNodePort.prefix+setReject), b.nodeAddress(p), b.reject()))
	}
	b.chain(chain{name: "nodeport-no-endpoints"}, nodeports...)
	daddr := nftwire.Payload(nftwire.BaseNetwork, b.f.daddr, b.f.addrLen, nftwire.Word(0))
	unused := []rule{join(part{text: b.f.name + " daddr @" + setClusterIPs, exprs: []nftwire.Expr{daddr, nftwire.Lookup(setClusterIPs, false)}}, b.reject())}
	for _, p := range ofFamily(b.f, b.rules.ServiceCIDRs) {
		unused = append(unused, join(b.prefix("daddr", b.f.daddr, p, nftwire.CmpEq), b.verdict(nftwire.VerdictDrop, "")))
	}
	b.chain(chain{name: "no-service"}, unused...)
}

const (
	stateNew   = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	statusDNAT = 1 << 5 // IPS_DST_NAT
)

func ctBit(text string, key, bit uint32) part {
	return part{text: text, exprs: []nftwire.Expr{nftwire.CT(key, nftwire.Word(0)), nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(bit), nftwire.Native32(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), nftwire.Native32(0))}}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	isNew, isDNAT := ctBit("ct state new", nftwire.CTState, stateNew), ctBit("ct status dnat", nftwire.CTStatus, statusDNAT)
	jump := func(to string) part { return b.verdict(nftwire.VerdictJump, to) }
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
	load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.saddr, b.f.addrLen, nftwire.Word(l)), nftwire.Lookup(setSources, true))
	return join(isNew, b.in(kindService, setRestricted),
		part{text: fmt.Sprintf("%s . %s saddr != @%s", text, b.f.name, setSources), exprs: load}, b.verdict(nftwire.VerdictDrop, ""))
}

// postrouting makes the chain that masquerades what was marked, taking the mark away, and connections of endpoints to themselves.
func (b *builder) postrouting(isDNAT part) {
	m := b.rules.MasqueradeMark
	masq := part{text: "masquerade fully-random", exprs: []nftwire.Expr{nftwire.Masquerade()}}
	marked := part{text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x", m, m, m),
		exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)), nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(m), nftwire.Native32(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), nftwire.Native32(m)),
			nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)), nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(^uint32(0)), nftwire.Native32(m)), nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0))}}
	f := b.f
	hairpin := part{text: fmt.Sprintf("%s saddr . %s daddr @%s", f.name, f.name, setHairpins),
		exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, f.saddr, f.addrLen, nftwire.Word(0)), nftwire.Payload(nftwire.BaseNetwork, f.daddr, f.addrLen, nftwire.Word(f.addrLen)), nftwire.Lookup(setHairpins, false)}}
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
