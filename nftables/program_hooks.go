package nftables

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// dispatch makes the chain that decides whether a packet is for a service. Addresses of services
// come before node ports.
func (b *builder) dispatch() {
	rules := []nftwire.Rule{nftwire.Join(b.in(kindService, kindService.registry),
		b.verdict(nftwire.VerdictGoto, kindService.chain))}
	for _, p := range b.nodePortPrefixes() {
		rules = append(rules, nftwire.Join(b.in(kindNodePort, kindNodePort.registry),
			b.nodeAddress(p), b.verdict(nftwire.VerdictGoto, kindNodePort.chain)))
	}
	b.prog.Add("dispatch", rules...)
}

// nodePortPrefixes are the ranges of the family in which addresses of the node take node ports.
func (b *builder) nodePortPrefixes() []netip.Prefix { return ofFamily(b.f, b.rules.NodePorts) }

func ofFamily(f *nftwire.Family, l []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range l {
		if servicemodel.FamilyOf(p.Addr()) == f.Model {
			out = append(out, p)
		}
	}
	return out
}

// nodeAddress matches packets to an address of this host in the range, except loopback.
func (b *builder) nodeAddress(p netip.Prefix) nftwire.Rule {
	parts := []nftwire.Rule{b.fib("daddr", nftwire.FIBDaddr, nftwire.CmpEq),
		b.prefix("daddr", b.f.Daddr, b.f.Loopback, nftwire.CmpNeq)}
	if p.Bits() > 0 {
		parts = append(parts, b.prefix("daddr", b.f.Daddr, p, nftwire.CmpEq))
	}
	r := nftwire.Join(parts...)
	return nftwire.Rule{Text: r.Text, Exprs: r.Exprs}
}

// noEndpoints makes the chains that answer for frontends without endpoints, for the other ports of
// cluster IPs and for unused addresses.
func (b *builder) noEndpoints() {
	b.prog.Add("no-endpoints",
		nftwire.Join(b.in(kindService, kindService.prefix+setDrop),
			b.verdict(nftwire.VerdictDrop, "")),
		nftwire.Join(b.in(kindService, kindService.prefix+setReject), b.reject()))
	var nodeports []nftwire.Rule
	for _, p := range b.nodePortPrefixes() {
		nodeports = append(nodeports,
			nftwire.Join(b.in(kindNodePort, kindNodePort.prefix+setDrop), b.nodeAddress(p),
				b.verdict(nftwire.VerdictDrop, "")),
			nftwire.Join(b.in(kindNodePort, kindNodePort.prefix+setReject), b.nodeAddress(p),
				b.reject()))
	}
	b.prog.Add("nodeport-no-endpoints", nodeports...)
	daddr := nftwire.Payload(nftwire.BaseNetwork, b.f.Daddr, b.f.AddrLen, nftwire.Word(0))
	unused := []nftwire.Rule{nftwire.Join(nftwire.Rule{Text: b.f.Name + " daddr @" + setClusterIPs,
		Exprs: []nftwire.Expr{daddr, nftwire.Lookup(setClusterIPs, false)}}, b.reject())}
	for _, p := range ofFamily(b.f, b.rules.ServiceCIDRs) {
		unused = append(unused, nftwire.Join(b.prefix("daddr", b.f.Daddr, p, nftwire.CmpEq),
			b.verdict(nftwire.VerdictDrop, "")))
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
func unconfirmed() nftwire.Rule {
	return nftwire.Rule{Text: "ct status ! confirmed",
		Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTStatus, nftwire.Word(0)),
			nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(statusConfirmed),
				nftwire.Native32(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0),
				nftwire.Native32(0))}}
}

func ctBit(text string, key, bit uint32) nftwire.Rule {
	return nftwire.Rule{Text: text, Exprs: []nftwire.Expr{nftwire.CT(key, nftwire.Word(0)),
		nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(bit), nftwire.Native32(0)),
		nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), nftwire.Native32(0))}}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	isNew, isDNAT := ctBit("ct state new", nftwire.CTState, stateNew),
		ctBit("ct status dnat", nftwire.CTStatus, statusDNAT)
	jump := func(to string) nftwire.Rule { return b.verdict(nftwire.VerdictJump, to) }
	if b.shape.sources {
		r := b.sources(isNew)
		b.prog.AddBase("sources-prerouting", "filter", nftwire.HookPrerouting, prioSources, r)
		b.prog.AddBase("sources-output", "filter", nftwire.HookOutput, prioSources, r)
	}
	b.prog.AddBase("nat-prerouting", "nat", nftwire.HookPrerouting, prioDNAT,
		nftwire.Join(jump("dispatch")))
	b.prog.AddBase("nat-output", "nat", nftwire.HookOutput, prioDNAT,
		nftwire.Join(jump("dispatch")))
	if len(b.shape.affinity) > 0 {
		first := nftwire.Join(isNew, isDNAT, unconfirmed(), jump(chainLearn))
		b.prog.AddBase("learn-prerouting", "filter", nftwire.HookPrerouting, prioLearn, first)
		b.prog.AddBase("learn-output", "filter", nftwire.HookOutput, prioLearn, first)
	}
	b.prog.AddBase("filter-input", "filter", nftwire.HookInput, prioFilter,
		nftwire.Join(isNew, jump("no-endpoints")),
		nftwire.Join(isNew, jump("nodeport-no-endpoints")))
	b.prog.AddBase("filter-forward", "filter", nftwire.HookForward, prioFilter,
		nftwire.Join(isNew, jump("no-endpoints")), nftwire.Join(isNew, jump("no-service")))
	b.prog.AddBase("filter-output", "filter", nftwire.HookOutput, prioFilter,
		nftwire.Join(isNew, jump("no-endpoints")), nftwire.Join(isNew, jump("no-service")))
	b.postrouting(isDNAT)
}

func (b *builder) sources(isNew nftwire.Rule) nftwire.Rule {
	text, load, l := b.loadKey(kindService)
	load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.Saddr, b.f.AddrLen,
		nftwire.Word(l)), nftwire.Lookup(setSources, true))
	return nftwire.Join(isNew, b.in(kindService, setRestricted),
		nftwire.Rule{Text: fmt.Sprintf("%s . %s saddr != @%s", text, b.f.Name, setSources),
			Exprs: load}, b.verdict(nftwire.VerdictDrop, ""))
}

// postrouting makes the chain that masquerades what was marked, taking the mark away, and
// connections of endpoints to themselves.
func (b *builder) postrouting(isDNAT nftwire.Rule) {
	m := b.rules.MasqueradeMark
	masq := nftwire.Rule{Text: "masquerade fully-random",
		Exprs: []nftwire.Expr{nftwire.Masquerade()}}
	marked := nftwire.Rule{
		Text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x meta mark set meta mark ^ 0x%08x", m, m, m),
		Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)),
			nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(m), nftwire.Native32(0)),
			nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), nftwire.Native32(m)),
			nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)), nftwire.Bitwise(nftwire.Word(0),
				nftwire.Native32(^uint32(0)), nftwire.Native32(m)),
			nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0))}}
	f := b.f
	hairpin := nftwire.Rule{Text: fmt.Sprintf("%s saddr . %s daddr @%s", f.Name, f.Name,
		setHairpins),
		Exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, f.Saddr, f.AddrLen,
			nftwire.Word(0)), nftwire.Payload(nftwire.BaseNetwork, f.Daddr, f.AddrLen,
			nftwire.Word(f.AddrLen)), nftwire.Lookup(setHairpins, false)}}
	b.prog.AddBase("nat-postrouting", "nat", nftwire.HookPostrouting, prioSNAT,
		nftwire.Join(marked, masq), nftwire.Join(isDNAT, hairpin, masq))
}
