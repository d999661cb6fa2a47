package ipvs

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the chains of a companion table: they depend on the node-wide rules only.
type builder struct {
	f     *nftwire.Family
	rules servicemodel.Rules
	prog  nftwire.Program
}

func newProgram(f *nftwire.Family, r servicemodel.Rules) nftwire.Program {
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
func (b *builder) key(kind string) (text string, load []nftwire.Expr, n int) {
	if kind == kindService {
		text, load, n = b.f.Name+" daddr . ",
			[]nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, b.f.Daddr, b.f.AddrLen,
				nftwire.Word(0))}, b.f.AddrLen
	}
	return text + "meta l4proto . th dport",
		append(load, nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(n)),
			nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(n+4))), n + 8
}

// flowKey loads the key of a frontend from what conntrack knows of the flow: where it was sent to
// at first.
func (b *builder) flowKey(kind string) (text string, load []nftwire.Expr) {
	n := 0
	if kind == kindService {
		text, load, n = "ct original "+b.f.Name+" daddr . ",
			[]nftwire.Expr{nftwire.CTOriginal(b.f.CTDst, nftwire.Word(0))}, b.f.AddrLen
	}
	return text + "ct original protocol . ct original proto-dst",
		append(load, nftwire.CTOriginal(nftwire.CTProtocol, nftwire.Word(n)),
			nftwire.CTOriginal(nftwire.CTProtoDst, nftwire.Word(n+4)))
}

func (b *builder) in(kind, set string) nftwire.Rule {
	text, load, _ := b.key(kind)
	return nftwire.Rule{Text: text + " @" + set, Exprs: append(load, nftwire.Lookup(set, false))}
}

func (b *builder) flowIn(kind, set string) nftwire.Rule {
	text, load := b.flowKey(kind)
	r := nftwire.Rule{Text: text + " @" + set, Exprs: append(load, nftwire.Lookup(set, false))}
	if kind == kindNodePort {
		r = nftwire.Join(nftwire.Rule{Text: "ct original " + b.f.Name + " daddr @" + setNodeAddrs,
			Exprs: []nftwire.Expr{nftwire.CTOriginal(b.f.CTDst, nftwire.Word(0)),
				nftwire.Lookup(setNodeAddrs, false)}}, r)
	}
	return r
}

func (b *builder) daddrIn(set string) nftwire.Rule {
	return nftwire.Rule{Text: b.f.Name + " daddr @" + set,
		Exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, b.f.Daddr, b.f.AddrLen,
			nftwire.Word(0)), nftwire.Lookup(set, false)}}
}

func (b *builder) verdict(code int32, to string) nftwire.Rule {
	text := map[int32]string{nftwire.VerdictJump: "jump " + to, nftwire.VerdictGoto: "goto " + to,
		nftwire.VerdictDrop: "drop", nftwire.VerdictAccept: "accept"}[code]
	return nftwire.Rule{Text: text, Exprs: []nftwire.Expr{nftwire.Verdict(code, to)}}
}

func (b *builder) reject() nftwire.Rule {
	icmp := map[string]string{"ip": "icmp", "ip6": "icmpv6"}[b.f.Name]
	return nftwire.Rule{Text: "reject with " + icmp + " port-unreachable",
		Exprs: []nftwire.Expr{nftwire.Reject(b.f.Unreach)}}
}

func (b *builder) fibLocal(name string, flag, op uint32) nftwire.Rule {
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	return nftwire.Rule{Text: "fib " + name + " type" + sign + "local",
		Exprs: []nftwire.Expr{nftwire.FIBType(flag, nftwire.Word(0)),
			nftwire.Compare(op, nftwire.Word(0), nftwire.Native32(nftwire.RTNLocal))}}
}

// notFromPods matches packets that do not come from pods; all packets, if pods cannot be told.
func (b *builder) notFromPods() nftwire.Rule {
	d := b.rules.LocalPods
	var parts []nftwire.Rule
	for _, c := range d.CIDRs {
		if servicemodel.FamilyOf(c.Addr()) == b.f.Model {
			parts = append(parts, b.prefix("saddr", b.f.Saddr, c, nftwire.CmpNeq))
		}
	}
	if d.Bridge != "" {
		name := make([]byte, 16) // IFNAMSIZ
		copy(name, d.Bridge)
		parts = append(parts, nftwire.Rule{Text: fmt.Sprintf("iifname != %q", d.Bridge),
			Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaIIFName, nftwire.Word(0)),
				nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), name)}})
	}
	if d.InterfacePrefix != "" {
		parts = append(parts,
			nftwire.Rule{Text: fmt.Sprintf("iifname != %q", d.InterfacePrefix+"*"),
				Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaIIFName, nftwire.Word(0)),
					nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), []byte(d.InterfacePrefix))}})
	}
	return nftwire.Join(parts...)
}

// prefix matches an address of the network header that is in p, or is not.
func (b *builder) prefix(name string, offset uint32, p netip.Prefix, op uint32) nftwire.Rule {
	p = p.Masked()
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	mask := make([]byte, b.f.AddrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return nftwire.Rule{Text: b.f.Name + " " + name + sign + p.String(),
		Exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, offset, b.f.AddrLen,
			nftwire.Word(0)),
			nftwire.Bitwise(nftwire.Word(0), mask, make([]byte, len(mask))),
			nftwire.Compare(op, nftwire.Word(0), nftwire.AppendAddr(nil, p.Addr()))}}
}

// frontends makes the chains that decide about the first packet of a connection to a frontend.
func (b *builder) frontends(kind string) {
	notPods, notHost := b.notFromPods(), b.fibLocal("saddr", nftwire.FIBSaddr, nftwire.CmpNeq)
	drop, accept := b.verdict(nftwire.VerdictDrop, ""), b.verdict(nftwire.VerdictAccept, "")
	b.prog.Add(kind+"-external",
		nftwire.Join(b.in(kind, kind+setExtDrop), drop), nftwire.Join(b.in(kind, kind+setExtReject),
			b.reject()), accept)
	var rules []nftwire.Rule
	if kind == kindService {
		text, load, n := b.key(kind)
		load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.Saddr, b.f.AddrLen,
			nftwire.Word(n)), nftwire.Lookup(setSources, true))
		rules = append(rules, nftwire.Join(b.in(kind, setRestricted),
			nftwire.Rule{Text: text + " . " + b.f.Name + " saddr != @" + setSources, Exprs: load},
			drop))
	}
	text, load, _ := b.key(kind)
	mark := nftwire.Rule{Text: "meta mark set " + text + " map @" + kind + setMarks,
		Exprs: append(load, nftwire.LookupMap(kind+setMarks), nftwire.MetaSet(nftwire.MetaMark,
			nftwire.Word(0)))}
	rules = append(rules,
		nftwire.Join(b.in(kind, kind+setSplit), notPods, notHost,
			b.verdict(nftwire.VerdictGoto, kind+"-external")),
		nftwire.Join(b.in(kind, kind+setDrop), drop), nftwire.Join(b.in(kind, kind+setReject),
			b.reject()), mark, accept)
	b.prog.Add(kind, rules...)
}

// admit makes the chains for the first packets of connections.
func (b *builder) admit() {
	b.prog.Add("admit",
		nftwire.Join(b.in(kindService, kindService+"s"),
			b.verdict(nftwire.VerdictGoto, kindService)),
		nftwire.Join(b.in(kindNodePort, kindNodePort+"s"), b.daddrIn(setNodeAddrs),
			b.verdict(nftwire.VerdictGoto, kindNodePort)))
	unused := []nftwire.Rule{nftwire.Join(b.daddrIn(setClusterIPs), b.reject())}
	for _, p := range b.rules.ServiceCIDRs {
		if servicemodel.FamilyOf(p.Addr()) == b.f.Model {
			unused = append(unused, nftwire.Join(b.prefix("daddr", b.f.Daddr, p, nftwire.CmpEq),
				b.verdict(nftwire.VerdictDrop, "")))
		}
	}
	b.prog.Add("no-service", unused...)
}

// masquerade makes the chains that decide, for the first packet of a connection that IPVS has sent
// on, whether it is masqueraded.
func (b *builder) masquerade() {
	f, masq := b.f, nftwire.Rule{Text: "masquerade fully-random",
		Exprs: []nftwire.Expr{nftwire.Masquerade()}}
	notPods, host := b.notFromPods(), b.fibLocal("saddr", nftwire.FIBSaddr, nftwire.CmpEq)
	hairpin := nftwire.Rule{Text: fmt.Sprintf("%s saddr . %s daddr @%s", f.Name, f.Name,
		setHairpins),
		Exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, f.Saddr, f.AddrLen,
			nftwire.Word(0)), nftwire.Payload(nftwire.BaseNetwork, f.Daddr, f.AddrLen,
			nftwire.Word(f.AddrLen)), nftwire.Lookup(setHairpins, false)}}
	for _, k := range kinds {
		rules := []nftwire.Rule{nftwire.Join(hairpin, masq)}
		if k == kindService {
			rules = append(rules, nftwire.Join(b.fromItself(), masq))
		}
		b.prog.Add(k+"-postrouting", append(rules,
			nftwire.Join(b.flowIn(k, k+setMasqAll), masq),
			nftwire.Join(b.flowIn(k, k+setMasqNotPod), notPods, masq),
			nftwire.Join(b.flowIn(k, k+setMasqHost), notPods, host, masq))...)
	}
}

// fromItself matches what the host sends to a service from the address of the service itself. It
// does so if the address is bound to a device; answers must come back here.
func (b *builder) fromItself() nftwire.Rule {
	_, load := b.flowKey(kindService)
	load[0] = nftwire.Payload(nftwire.BaseNetwork, b.f.Saddr, b.f.AddrLen, nftwire.Word(0))
	return nftwire.Rule{Text: b.f.Name + " saddr . ct original protocol . ct original proto-dst @" +
		kindService + "s", Exprs: append(load, nftwire.Lookup(kindService+"s", false))}
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
func mark(mask, xor uint32, then nftwire.Expr) []nftwire.Expr {
	return []nftwire.Expr{nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)),
		nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(mask), nftwire.Native32(xor)), then}
}

// markIs matches packets whose mark has these bits in the mask.
func markIs(mask, bits uint32) nftwire.Rule {
	return nftwire.Rule{Text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x", mask, bits),
		Exprs: mark(mask, 0, nftwire.Compare(nftwire.CmpEq, nftwire.Word(0),
			nftwire.Native32(bits)))}
}

// setMark keeps bits of the mark and sets others.
func setMark(keep, set uint32) nftwire.Rule {
	text := fmt.Sprintf("meta mark set meta mark & 0x%08x", keep)
	if set != 0 {
		text += fmt.Sprintf(" | 0x%08x", set)
	}
	return nftwire.Rule{Text: text,
		Exprs: mark(keep, set, nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0)))}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	original := nftwire.Rule{Text: "ct direction original",
		Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTDirection, nftwire.Word(0)),
			nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), []byte{0})}}
	steer := nftwire.Rule{Text: fmt.Sprintf("meta mark set meta mark | 0x%08x", steerBit),
		Exprs: mark(^steerBit, steerBit, nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0)))}
	isNew := nftwire.Rule{Text: "ct state new",
		Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTState, nftwire.Word(0)),
			nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(stateNew), nftwire.Native32(0)),
			nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), nftwire.Native32(0))}}
	services := b.in(kindService, kindService+"s")
	unmark := []nftwire.Rule{nftwire.Join(markIs(splitMarks, splitMarks), setMark(0, 0)),
		nftwire.Join(markIs(steerBit, steerBit), setMark(^steerBit, 0))}
	b.prog.AddBase("unmark-output", "filter", nftwire.HookOutput, prioUnmark, append([]nftwire.Rule{
		nftwire.Join(markIs(splitMarks, splitMarks), services, setMark(0, sentMark)),
		nftwire.Join(markIs(steerBit, steerBit), services, setMark(^splitMarks, sentMark))},
		unmark...)...)
	b.prog.AddBase("unmark-postrouting", "filter", nftwire.HookPostrouting, prioUnmarkIn,
		append(unmark, nftwire.Join(markIs(splitMarks, sentMark), setMark(^splitMarks, 0)))...)
	b.leads(original, steer, isNew, services)
	// What is led here and gets past IPVS as it came belongs to a connection that it has forgotten.
	// The address is nobody's, so the machine itself cannot answer.
	b.prog.AddBase("input", "filter", nftwire.HookInput, prioReset,
		nftwire.Join(markIs(steerBit, steerBit),
			nftwire.Rule{Text: "meta l4proto tcp",
				Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(0)),
					nftwire.Compare(nftwire.CmpEq, nftwire.Word(0),
						[]byte{byte(servicemodel.TCP)})}},
			b.fibLocal("daddr", nftwire.FIBDaddr, nftwire.CmpNeq),
			nftwire.Rule{Text: "reject with tcp reset", Exprs: []nftwire.Expr{nftwire.ResetTCP()}}))
	b.prog.AddBase("postrouting", "nat", nftwire.HookPostrouting, prioSNAT,
		nftwire.Join(b.flowIn(kindService, kindService+"s"),
			b.verdict(nftwire.VerdictGoto, kindService+"-postrouting")),
		nftwire.Join(b.flowIn(kindNodePort, kindNodePort+"s"),
			b.verdict(nftwire.VerdictGoto, kindNodePort+"-postrouting")))
}

// leads makes the chains that lead packets to IPVS.
func (b *builder) leads(original, steer, isNew, services nftwire.Rule) {
	// Where packets are forwarded unchanged, answers need not come this way: conntrack, which then
	// sees half of a connection, takes it for invalid.
	halves := b.in(kindService, setRouted)
	admit := nftwire.Join(isNew, b.verdict(nftwire.VerdictJump, "admit"))
	elsewhere := nftwire.Join(isNew, b.fibLocal("daddr", nftwire.FIBDaddr, nftwire.CmpNeq),
		b.verdict(nftwire.VerdictJump, "no-service"))
	backwards := nftwire.Join(b.backwards(), services, b.fibLocal("daddr", nftwire.FIBDaddr,
		nftwire.CmpNeq), steer)
	b.prog.AddBase("prerouting", "filter", nftwire.HookPrerouting, prioSteer,
		nftwire.Join(original, b.flowIn(kindService, kindService+"s"), steer), backwards,
		nftwire.Join(halves, steer), admit, elsewhere)
	b.prog.AddBase("output", "route", nftwire.HookOutput, prioSteer,
		nftwire.Join(markIs(splitMarks, sentMark), b.verdict(nftwire.VerdictAccept, "")),
		nftwire.Join(services, original, steer), backwards, admit, elsewhere)
}

// backwards matches what conntrack takes for answers in a flow that it does not translate. If the
// first packet that conntrack sees of a connection comes from the endpoint, since the flow was
// deleted or the table emptied, it makes a flow of it in which the endpoint is the client: IPVS has
// translated the packet by then, and conntrack expects answers to the service's address. What the
// client sends is to go to IPVS as before.
func (b *builder) backwards() nftwire.Rule {
	reply := nftwire.Rule{Text: "ct direction reply",
		Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTDirection, nftwire.Word(0)),
			nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), []byte{1})}}
	return nftwire.Join(reply,
		nftwire.Rule{Text: fmt.Sprintf("ct status & 0x%x == 0x0", translated),
			Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTStatus, nftwire.Word(0)),
				nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(translated), nftwire.Native32(0)),
				nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), nftwire.Native32(0))}})
}
