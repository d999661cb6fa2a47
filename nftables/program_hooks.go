package nftables

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// dispatch makes the chain that decides whether a packet is for a service. Addresses of services
// come before node ports.
func (b *builder) dispatch() {
	rules := []nft.Rule{nft.Join(b.in(kindService, kindService.registry),
		b.verdict(nft.VerdictGoto, kindService.chain))}
	for _, p := range b.nodePortPrefixes() {
		rules = append(rules, nft.Join(b.in(kindNodePort, kindNodePort.registry),
			b.nodeAddress(p), b.verdict(nft.VerdictGoto, kindNodePort.chain)))
	}
	b.prog.Add("dispatch", rules...)
}

// nodePortPrefixes are the ranges of the family in which addresses of the node take node ports.
func (b *builder) nodePortPrefixes() []netip.Prefix { return ofFamily(b.f, b.rules.NodePorts) }

func ofFamily(f *nft.Family, l []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range l {
		if servicemodel.FamilyOf(p.Addr()) == f.Model {
			out = append(out, p)
		}
	}
	return out
}

// nodeAddress matches packets to an address of this host in the range, except loopback.
func (b *builder) nodeAddress(p netip.Prefix) nft.Rule {
	parts := []nft.Rule{b.fib("daddr", nft.FIBDaddr, nft.CmpEq),
		b.prefix("daddr", b.f.Daddr, b.f.Loopback, nft.CmpNeq)}
	if p.Bits() > 0 {
		parts = append(parts, b.prefix("daddr", b.f.Daddr, p, nft.CmpEq))
	}
	r := nft.Join(parts...)
	return nft.Rule{Text: r.Text, Exprs: r.Exprs}
}

// noEndpoints makes the chains that answer for frontends without endpoints, for the other ports of
// cluster IPs and for unused addresses.
func (b *builder) noEndpoints() {
	b.prog.Add("no-endpoints",
		nft.Join(b.in(kindService, kindService.prefix+setDrop),
			b.verdict(nft.VerdictDrop, "")),
		nft.Join(b.in(kindService, kindService.prefix+setReject), b.reject()))
	var nodeports []nft.Rule
	for _, p := range b.nodePortPrefixes() {
		nodeports = append(nodeports,
			nft.Join(b.in(kindNodePort, kindNodePort.prefix+setDrop), b.nodeAddress(p),
				b.verdict(nft.VerdictDrop, "")),
			nft.Join(b.in(kindNodePort, kindNodePort.prefix+setReject), b.nodeAddress(p),
				b.reject()))
	}
	b.prog.Add("nodeport-no-endpoints", nodeports...)
	daddr := nft.Payload(nft.BaseNetwork, b.f.Daddr, b.f.AddrLen, nft.Word(0))
	unused := []nft.Rule{nft.Join(nft.Rule{Text: b.f.Name + " daddr @" + setClusterIPs,
		Exprs: []nft.Expr{daddr, nft.Lookup(setClusterIPs, false)}}, b.reject())}
	for _, p := range ofFamily(b.f, b.rules.ServiceCIDRs) {
		unused = append(unused, nft.Join(b.prefix("daddr", b.f.Daddr, p, nft.CmpEq),
			b.verdict(nft.VerdictDrop, "")))
	}
	b.prog.Add("no-service", unused...)
}

const (
	stateNew        = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	statusConfirmed = 1 << 3 // IPS_CONFIRMED
	statusDNAT      = 1 << 5 // IPS_DST_NAT
)

// unconfirmed matches the first packet of a flow, for which an endpoint was just chosen. Further
// packets may follow it without an answer, such as a SYN that is sent again, when that endpoint is
// long gone.
func unconfirmed() nft.Rule {
	return nft.Rule{Text: "ct status ! confirmed",
		Exprs: []nft.Expr{nft.CT(nft.CTStatus, nft.Word(0)),
			nft.Bitwise(nft.Word(0), nft.Native32(statusConfirmed),
				nft.Native32(0)), nft.Compare(nft.CmpEq, nft.Word(0),
				nft.Native32(0))}}
}

func ctBit(text string, key, bit uint32) nft.Rule {
	return nft.Rule{Text: text, Exprs: []nft.Expr{nft.CT(key, nft.Word(0)),
		nft.Bitwise(nft.Word(0), nft.Native32(bit), nft.Native32(0)),
		nft.Compare(nft.CmpNeq, nft.Word(0), nft.Native32(0))}}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	isNew, isDNAT := ctBit("ct state new", nft.CTState, stateNew),
		ctBit("ct status dnat", nft.CTStatus, statusDNAT)
	jump := func(to string) nft.Rule { return b.verdict(nft.VerdictJump, to) }
	if b.shape.sources {
		r := b.sources(isNew)
		b.prog.AddBase("sources-prerouting", "filter", nft.HookPrerouting, prioSources, r)
		b.prog.AddBase("sources-output", "filter", nft.HookOutput, prioSources, r)
	}
	b.prog.AddBase("nat-prerouting", "nat", nft.HookPrerouting, prioDNAT,
		nft.Join(jump("dispatch")))
	b.prog.AddBase("nat-output", "nat", nft.HookOutput, prioDNAT,
		nft.Join(jump("dispatch")))
	if len(b.shape.affinity) > 0 {
		first := nft.Join(isNew, isDNAT, unconfirmed(), jump(chainLearn))
		b.prog.AddBase("learn-prerouting", "filter", nft.HookPrerouting, prioLearn, first)
		b.prog.AddBase("learn-output", "filter", nft.HookOutput, prioLearn, first)
	}
	b.prog.AddBase("filter-input", "filter", nft.HookInput, prioFilter,
		nft.Join(isNew, jump("no-endpoints")),
		nft.Join(isNew, jump("nodeport-no-endpoints")))
	b.prog.AddBase("filter-forward", "filter", nft.HookForward, prioFilter,
		nft.Join(isNew, jump("no-endpoints")), nft.Join(isNew, jump("no-service")))
	b.prog.AddBase("filter-output", "filter", nft.HookOutput, prioFilter,
		nft.Join(isNew, jump("no-endpoints")), nft.Join(isNew, jump("no-service")))
	b.postrouting(isDNAT)
}

func (b *builder) sources(isNew nft.Rule) nft.Rule {
	text, load, l := b.loadKey(kindService)
	load = append(load, nft.Payload(nft.BaseNetwork, b.f.Saddr, b.f.AddrLen,
		nft.Word(l)), nft.Lookup(setSources, true))
	return nft.Join(isNew, b.in(kindService, setRestricted),
		nft.Rule{Text: fmt.Sprintf("%s . %s saddr != @%s", text, b.f.Name, setSources),
			Exprs: load}, b.verdict(nft.VerdictDrop, ""))
}

// postrouting makes the chain that masquerades what was marked, taking the mark away, and
// connections of endpoints to themselves.
func (b *builder) postrouting(isDNAT nft.Rule) {
	m := b.rules.MasqueradeMark
	masq := nft.Rule{Text: "masquerade fully-random",
		Exprs: []nft.Expr{nft.Masquerade()}}
	marked := nft.Rule{
		Text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x", m, m, m),
		Exprs: []nft.Expr{nft.Meta(nft.MetaMark, nft.Word(0)),
			nft.Bitwise(nft.Word(0), nft.Native32(m), nft.Native32(0)),
			nft.Compare(nft.CmpEq, nft.Word(0), nft.Native32(m)),
			nft.Meta(nft.MetaMark, nft.Word(0)), nft.Bitwise(nft.Word(0),
				nft.Native32(^uint32(0)), nft.Native32(m)),
			nft.MetaSet(nft.MetaMark, nft.Word(0))}}
	f := b.f
	hairpin := nft.Rule{Text: fmt.Sprintf("%s saddr . %s daddr @%s", f.Name, f.Name,
		setHairpins),
		Exprs: []nft.Expr{nft.Payload(nft.BaseNetwork, f.Saddr, f.AddrLen,
			nft.Word(0)), nft.Payload(nft.BaseNetwork, f.Daddr, f.AddrLen,
			nft.Word(f.AddrLen)), nft.Lookup(setHairpins, false)}}
	b.prog.AddBase("nat-postrouting", "nat", nft.HookPostrouting, prioSNAT,
		nft.Join(marked, masq), nft.Join(isDNAT, hairpin, masq))
}
