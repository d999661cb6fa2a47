package ipvs

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the chains of a companion table: they depend on the node-wide rules only.
type builder struct {
	f     *nft.Family
	rules servicemodel.Rules
	prog  nft.Program
}

func newProgram(f *nft.Family, r servicemodel.Rules) nft.Program {
	b := &builder{f: f, rules: r}
	for _, k := range kinds {
		b.frontends(k)
	}
	b.admit()
	b.masquerade()
	b.hooks()
	return b.prog
}

// key loads the key of a frontend from the packet.
func (b *builder) key(kind string) (text string, load []nft.Expr, n int) {
	if kind == kindService {
		text, load, n = b.f.Name+" daddr . ",
			[]nft.Expr{nft.Payload(nft.BaseNetwork, b.f.Daddr, b.f.AddrLen,
				nft.Word(0))}, b.f.AddrLen
	}
	return text + "meta l4proto . th dport",
		append(load, nft.Meta(nft.MetaL4Proto, nft.Word(n)),
			nft.Payload(nft.BaseTransport, 2, 2, nft.Word(n+4))), n + 8
}

// flowKey loads the key of a frontend from what conntrack knows of the flow: where it was sent to
// at first.
func (b *builder) flowKey(kind string) (text string, load []nft.Expr) {
	n := 0
	if kind == kindService {
		text, load, n = "ct original "+b.f.Name+" daddr . ",
			[]nft.Expr{nft.CTOriginal(b.f.CTDst, nft.Word(0))}, b.f.AddrLen
	}
	return text + "ct original protocol . ct original proto-dst",
		append(load, nft.CTOriginal(nft.CTProtocol, nft.Word(n)),
			nft.CTOriginal(nft.CTProtoDst, nft.Word(n+4)))
}

func (b *builder) in(kind, set string) nft.Rule {
	text, load, _ := b.key(kind)
	return nft.Rule{Text: text + " @" + set, Exprs: append(load, nft.Lookup(set, false))}
}

func (b *builder) flowIn(kind, set string) nft.Rule {
	text, load := b.flowKey(kind)
	r := nft.Rule{Text: text + " @" + set, Exprs: append(load, nft.Lookup(set, false))}
	if kind == kindNodePort {
		r = nft.Join(nft.Rule{Text: "ct original " + b.f.Name + " daddr @" + setNodeAddrs,
			Exprs: []nft.Expr{nft.CTOriginal(b.f.CTDst, nft.Word(0)),
				nft.Lookup(setNodeAddrs, false)}}, r)
	}
	return r
}

func (b *builder) daddrIn(set string) nft.Rule {
	return nft.Rule{Text: b.f.Name + " daddr @" + set,
		Exprs: []nft.Expr{nft.Payload(nft.BaseNetwork, b.f.Daddr, b.f.AddrLen,
			nft.Word(0)), nft.Lookup(set, false)}}
}

func (b *builder) verdict(code int32, to string) nft.Rule {
	text := map[int32]string{nft.VerdictJump: "jump " + to, nft.VerdictGoto: "goto " + to,
		nft.VerdictDrop: "drop", nft.VerdictAccept: "accept"}[code]
	return nft.Rule{Text: text, Exprs: []nft.Expr{nft.Verdict(code, to)}}
}

func (b *builder) reject() nft.Rule {
	icmp := map[string]string{"ip": "icmp", "ip6": "icmpv6"}[b.f.Name]
	return nft.Rule{Text: "reject with " + icmp + " port-unreachable",
		Exprs: []nft.Expr{nft.Reject(b.f.Unreach)}}
}

func (b *builder) fibLocal(name string, flag, op uint32) nft.Rule {
	sign := " "
	if op == nft.CmpNeq {
		sign = " != "
	}
	return nft.Rule{Text: "fib " + name + " type" + sign + "local",
		Exprs: []nft.Expr{nft.FIBType(flag, nft.Word(0)),
			nft.Compare(op, nft.Word(0), nft.Native32(nft.RTNLocal))}}
}

// notFromPods matches packets that do not come from pods; all packets, if pods cannot be told.
func (b *builder) notFromPods() nft.Rule {
	d := b.rules.LocalPods
	var parts []nft.Rule
	for _, c := range d.CIDRs {
		if servicemodel.FamilyOf(c.Addr()) == b.f.Model {
			parts = append(parts, b.prefix("saddr", b.f.Saddr, c, nft.CmpNeq))
		}
	}
	if d.Bridge != "" {
		name := make([]byte, 16) // IFNAMSIZ
		copy(name, d.Bridge)
		parts = append(parts, nft.Rule{Text: fmt.Sprintf("iifname != %q", d.Bridge),
			Exprs: []nft.Expr{nft.Meta(nft.MetaIIFName, nft.Word(0)),
				nft.Compare(nft.CmpNeq, nft.Word(0), name)}})
	}
	if d.InterfacePrefix != "" {
		parts = append(parts,
			nft.Rule{Text: fmt.Sprintf("iifname != %q", d.InterfacePrefix+"*"),
				Exprs: []nft.Expr{nft.Meta(nft.MetaIIFName, nft.Word(0)),
					nft.Compare(nft.CmpNeq, nft.Word(0), []byte(d.InterfacePrefix))}})
	}
	return nft.Join(parts...)
}

// prefix matches an address of the network header that is in p, or is not.
func (b *builder) prefix(name string, offset uint32, p netip.Prefix, op uint32) nft.Rule {
	p = p.Masked()
	sign := " "
	if op == nft.CmpNeq {
		sign = " != "
	}
	mask := make([]byte, b.f.AddrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return nft.Rule{Text: b.f.Name + " " + name + sign + p.String(),
		Exprs: []nft.Expr{nft.Payload(nft.BaseNetwork, offset, b.f.AddrLen,
			nft.Word(0)),
			nft.Bitwise(nft.Word(0), mask, make([]byte, len(mask))),
			nft.Compare(op, nft.Word(0), nft.AppendAddr(nil, p.Addr()))}}
}

// frontends makes the chains that decide about the first packet of a connection to a frontend.
func (b *builder) frontends(kind string) {
	notPods, notHost := b.notFromPods(), b.fibLocal("saddr", nft.FIBSaddr, nft.CmpNeq)
	drop, accept := b.verdict(nft.VerdictDrop, ""), b.verdict(nft.VerdictAccept, "")
	b.prog.Add(kind+"-external",
		nft.Join(b.in(kind, kind+setExtDrop), drop), nft.Join(b.in(kind, kind+setExtReject),
			b.reject()), accept)
	var rules []nft.Rule
	if kind == kindService {
		text, load, n := b.key(kind)
		load = append(load, nft.Payload(nft.BaseNetwork, b.f.Saddr, b.f.AddrLen,
			nft.Word(n)), nft.Lookup(setSources, true))
		rules = append(rules, nft.Join(b.in(kind, setRestricted),
			nft.Rule{Text: text + " . " + b.f.Name + " saddr != @" + setSources, Exprs: load},
			drop))
	}
	text, load, _ := b.key(kind)
	mark := nft.Rule{Text: "meta mark set " + text + " map @" + kind + setMarks,
		Exprs: append(load, nft.LookupMap(kind+setMarks), nft.MetaSet(nft.MetaMark,
			nft.Word(0)))}
	rules = append(rules,
		nft.Join(b.in(kind, kind+setSplit), notPods, notHost,
			b.verdict(nft.VerdictGoto, kind+"-external")),
		nft.Join(b.in(kind, kind+setDrop), drop), nft.Join(b.in(kind, kind+setReject),
			b.reject()), mark, accept)
	b.prog.Add(kind, rules...)
}

// admit makes the chains for the first packets of connections.
func (b *builder) admit() {
	b.prog.Add("admit",
		nft.Join(b.in(kindService, kindService+"s"),
			b.verdict(nft.VerdictGoto, kindService)),
		nft.Join(b.in(kindNodePort, kindNodePort+"s"), b.daddrIn(setNodeAddrs),
			b.verdict(nft.VerdictGoto, kindNodePort)))
	unused := []nft.Rule{nft.Join(b.daddrIn(setClusterIPs), b.reject())}
	for _, p := range b.rules.ServiceCIDRs {
		if servicemodel.FamilyOf(p.Addr()) == b.f.Model {
			unused = append(unused, nft.Join(b.prefix("daddr", b.f.Daddr, p, nft.CmpEq),
				b.verdict(nft.VerdictDrop, "")))
		}
	}
	b.prog.Add("no-service", unused...)
}

// masquerade makes the chains that decide, for the first packet of a connection that IPVS has sent
// on, whether it is masqueraded.
func (b *builder) masquerade() {
	f, masq := b.f, nft.Rule{Text: "masquerade fully-random",
		Exprs: []nft.Expr{nft.Masquerade()}}
	notPods, host := b.notFromPods(), b.fibLocal("saddr", nft.FIBSaddr, nft.CmpEq)
	hairpin := nft.Rule{Text: fmt.Sprintf("%s saddr . %s daddr @%s", f.Name, f.Name,
		setHairpins),
		Exprs: []nft.Expr{nft.Payload(nft.BaseNetwork, f.Saddr, f.AddrLen,
			nft.Word(0)), nft.Payload(nft.BaseNetwork, f.Daddr, f.AddrLen,
			nft.Word(f.AddrLen)), nft.Lookup(setHairpins, false)}}
	for _, k := range kinds {
		rules := []nft.Rule{nft.Join(hairpin, masq)}
		if k == kindService {
			rules = append(rules, nft.Join(b.fromItself(), masq))
		}
		b.prog.Add(k+"-postrouting", append(rules,
			nft.Join(b.flowIn(k, k+setMasqAll), masq),
			nft.Join(b.flowIn(k, k+setMasqNotPod), notPods, masq),
			nft.Join(b.flowIn(k, k+setMasqHost), notPods, host, masq))...)
	}
}

// fromItself matches what the host sends to a service from the address of the service itself. It
// does so if the address is bound to a device; answers must come back here.
func (b *builder) fromItself() nft.Rule {
	_, load := b.flowKey(kindService)
	load[0] = nft.Payload(nft.BaseNetwork, b.f.Saddr, b.f.AddrLen, nft.Word(0))
	return nft.Rule{Text: b.f.Name + " saddr . ct original protocol . ct original proto-dst @" +
		kindService + "s", Exprs: append(load, nft.Lookup(kindService+"s", false))}
}

const (
	stateNew = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	// IPS_SRC_NAT, IPS_DST_NAT (enum ip_conntrack_status in
	// include/uapi/linux/netfilter/nf_conntrack_common.h)
	translated = 0x30
)

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). IPVS works at -98
// in the output hook and at 99 in the input hook.
const (
	prioUnmark   = -300
	prioSteer    = -150
	prioSNAT     = 100
	prioUnmarkIn = 110
	prioReset    = 110
)

// mark loads the packet mark, applies a mask and an exclusive or, and does something with it.
func mark(mask, xor uint32, then nft.Expr) []nft.Expr {
	return []nft.Expr{nft.Meta(nft.MetaMark, nft.Word(0)),
		nft.Bitwise(nft.Word(0), nft.Native32(mask), nft.Native32(xor)), then}
}

// markIs matches packets whose mark has these bits in the mask.
func markIs(mask, bits uint32) nft.Rule {
	return nft.Rule{Text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x", mask, bits),
		Exprs: mark(mask, 0, nft.Compare(nft.CmpEq, nft.Word(0),
			nft.Native32(bits)))}
}

// setMark keeps bits of the mark and sets others.
func setMark(keep, set uint32) nft.Rule {
	text := fmt.Sprintf("meta mark set meta mark & 0x%08x", keep)
	if set != 0 {
		text += fmt.Sprintf(" | 0x%08x", set)
	}
	return nft.Rule{Text: text,
		Exprs: mark(keep, set, nft.MetaSet(nft.MetaMark, nft.Word(0)))}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	original := nft.Rule{Text: "ct direction original",
		Exprs: []nft.Expr{nft.CT(nft.CTDirection, nft.Word(0)),
			nft.Compare(nft.CmpEq, nft.Word(0), []byte{0})}}
	steer := nft.Rule{Text: fmt.Sprintf("meta mark set meta mark | 0x%08x", steerBit),
		Exprs: mark(^steerBit, steerBit, nft.MetaSet(nft.MetaMark, nft.Word(0)))}
	isNew := nft.Rule{Text: "ct state new",
		Exprs: []nft.Expr{nft.CT(nft.CTState, nft.Word(0)),
			nft.Bitwise(nft.Word(0), nft.Native32(stateNew), nft.Native32(0)),
			nft.Compare(nft.CmpNeq, nft.Word(0), nft.Native32(0))}}
	services := b.in(kindService, kindService+"s")
	unmark := []nft.Rule{nft.Join(markIs(splitMarks, splitMarks), setMark(0, 0)),
		nft.Join(markIs(steerBit, steerBit), setMark(^steerBit, 0))}
	b.prog.AddBase("unmark-output", "filter", nft.HookOutput, prioUnmark, append([]nft.Rule{
		nft.Join(markIs(splitMarks, splitMarks), services, setMark(0, sentMark)),
		nft.Join(markIs(steerBit, steerBit), services, setMark(^splitMarks, sentMark))},
		unmark...)...)
	b.prog.AddBase("unmark-postrouting", "filter", nft.HookPostrouting, prioUnmarkIn,
		append(unmark, nft.Join(markIs(splitMarks, sentMark), setMark(^splitMarks, 0)))...)
	b.leads(original, steer, isNew, services)
	// What is led here and gets past IPVS as it came belongs to a connection that it has forgotten.
	// The address is nobody's, so the machine itself cannot answer.
	b.prog.AddBase("input", "filter", nft.HookInput, prioReset,
		nft.Join(markIs(steerBit, steerBit),
			nft.Rule{Text: "meta l4proto tcp",
				Exprs: []nft.Expr{nft.Meta(nft.MetaL4Proto, nft.Word(0)),
					nft.Compare(nft.CmpEq, nft.Word(0),
						[]byte{byte(servicemodel.TCP)})}},
			b.fibLocal("daddr", nft.FIBDaddr, nft.CmpNeq),
			nft.Rule{Text: "reject with tcp reset", Exprs: []nft.Expr{nft.ResetTCP()}}))
	b.prog.AddBase("postrouting", "nat", nft.HookPostrouting, prioSNAT,
		nft.Join(b.flowIn(kindService, kindService+"s"),
			b.verdict(nft.VerdictGoto, kindService+"-postrouting")),
		nft.Join(b.flowIn(kindNodePort, kindNodePort+"s"),
			b.verdict(nft.VerdictGoto, kindNodePort+"-postrouting")))
}

// leads makes the chains that lead packets to IPVS.
func (b *builder) leads(original, steer, isNew, services nft.Rule) {
	// Where packets are forwarded unchanged, answers need not come this way: conntrack, which then
	// sees half of a connection, takes it for invalid.
	halves := b.in(kindService, setRouted)
	admit := nft.Join(isNew, b.verdict(nft.VerdictJump, "admit"))
	elsewhere := nft.Join(isNew, b.fibLocal("daddr", nft.FIBDaddr, nft.CmpNeq),
		b.verdict(nft.VerdictJump, "no-service"))
	backwards := nft.Join(b.backwards(), services, b.fibLocal("daddr", nft.FIBDaddr,
		nft.CmpNeq), steer)
	b.prog.AddBase("prerouting", "filter", nft.HookPrerouting, prioSteer,
		nft.Join(original, b.flowIn(kindService, kindService+"s"), steer), backwards,
		nft.Join(halves, steer), admit, elsewhere)
	b.prog.AddBase("output", "route", nft.HookOutput, prioSteer,
		nft.Join(markIs(splitMarks, sentMark), b.verdict(nft.VerdictAccept, "")),
		nft.Join(services, original, steer), backwards, admit, elsewhere)
}

// backwards matches what conntrack takes for answers in a flow that it does not translate. If the
// first packet that conntrack sees of a connection comes from the endpoint, since the flow was
// deleted or the table emptied, it makes a flow of it in which the endpoint is the client: IPVS has
// translated the packet by then, and conntrack expects answers to the service's address. What the
// client sends is to go to IPVS as before.
func (b *builder) backwards() nft.Rule {
	reply := nft.Rule{Text: "ct direction reply",
		Exprs: []nft.Expr{nft.CT(nft.CTDirection, nft.Word(0)),
			nft.Compare(nft.CmpEq, nft.Word(0), []byte{1})}}
	return nft.Join(reply,
		nft.Rule{Text: fmt.Sprintf("ct status & 0x%x == 0x0", translated),
			Exprs: []nft.Expr{nft.CT(nft.CTStatus, nft.Word(0)),
				nft.Bitwise(nft.Word(0), nft.Native32(translated), nft.Native32(0)),
				nft.Compare(nft.CmpEq, nft.Word(0), nft.Native32(0))}})
}
