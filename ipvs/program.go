package ipvs

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// rule is a rule as nft writes it, and as the kernel takes it.
type rule struct {
	text  string
	exprs []nftwire.Expr
}

// hash identifies a rule. It is kept in the rule's user data: the text determines the expressions.
func (r *rule) hash() uint64 {
	h := fnv.New64a()
	h.Write([]byte(r.text))
	return h.Sum64()
}

type programChain struct {
	chain
	rules []rule
}

// builder makes the chains of a companion table: they depend on the node-wide rules only.
type builder struct {
	f      *family
	rules  servicemodel.Rules
	chains []programChain
}

func newProgram(f *family, r servicemodel.Rules) []programChain {
	b := &builder{f: f, rules: r}
	for _, k := range kinds {
		b.frontends(k)
	}
	b.admit()
	b.masquerade()
	b.hooks()
	return b.chains
}

func (b *builder) chain(c chain, rules ...rule) { b.chains = append(b.chains, programChain{c, rules}) }

// join makes one rule of several parts.
func join(parts ...rule) rule {
	var r rule
	var text []string
	for _, p := range parts {
		if p.text != "" {
			text = append(text, p.text)
		}
		r.exprs = append(r.exprs, p.exprs...)
	}
	r.text = strings.Join(text, " ")
	return r
}

// key loads the key of a frontend from the packet.
func (b *builder) key(kind string) (text string, load []nftwire.Expr, n int) {
	if kind == kindService {
		text, load, n = b.f.name+" daddr . ", []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, b.f.daddr, b.f.addrLen, nftwire.Word(0))}, b.f.addrLen
	}
	return text + "meta l4proto . th dport", append(load, nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(n)), nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(n+4))), n + 8
}

// flowKey loads the key of a frontend from what conntrack knows of the flow: where it was sent to at first.
func (b *builder) flowKey(kind string) (text string, load []nftwire.Expr) {
	n := 0
	if kind == kindService {
		text, load, n = "ct original "+b.f.name+" daddr . ", []nftwire.Expr{nftwire.CTOriginal(b.f.ctDst, nftwire.Word(0))}, b.f.addrLen
	}
	return text + "ct original protocol . ct original proto-dst",
		append(load, nftwire.CTOriginal(nftwire.CTProtocol, nftwire.Word(n)), nftwire.CTOriginal(nftwire.CTProtoDst, nftwire.Word(n+4)))
}

func (b *builder) in(kind, set string) rule {
	text, load, _ := b.key(kind)
	return rule{text + " @" + set, append(load, nftwire.Lookup(set, false))}
}

func (b *builder) flowIn(kind, set string) rule {
	text, load := b.flowKey(kind)
	r := rule{text + " @" + set, append(load, nftwire.Lookup(set, false))}
	if kind == kindNodePort {
		r = join(rule{"ct original " + b.f.name + " daddr @" + setNodeAddrs,
			[]nftwire.Expr{nftwire.CTOriginal(b.f.ctDst, nftwire.Word(0)), nftwire.Lookup(setNodeAddrs, false)}}, r)
	}
	return r
}

func (b *builder) daddrIn(set string) rule {
	return rule{b.f.name + " daddr @" + set, []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, b.f.daddr, b.f.addrLen, nftwire.Word(0)), nftwire.Lookup(set, false)}}
}

func (b *builder) verdict(code int32, to string) rule {
	text := map[int32]string{nftwire.VerdictJump: "jump " + to, nftwire.VerdictGoto: "goto " + to, nftwire.VerdictDrop: "drop", nftwire.VerdictAccept: "accept"}[code]
	return rule{text, []nftwire.Expr{nftwire.Verdict(code, to)}}
}

func (b *builder) reject() rule {
	icmp := map[string]string{"ip": "icmp", "ip6": "icmpv6"}[b.f.name]
	return rule{"reject with " + icmp + " port-unreachable", []nftwire.Expr{nftwire.Reject(b.f.unreach)}}
}

func (b *builder) fibLocal(name string, flag, op uint32) rule {
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	return rule{"fib " + name + " type" + sign + "local", []nftwire.Expr{nftwire.FIBType(flag, nftwire.Word(0)), nftwire.Compare(op, nftwire.Word(0), nftwire.Native32(nftwire.RTNLocal))}}
}

// notFromPods matches packets that do not come from pods; all packets, if pods cannot be told.
func (b *builder) notFromPods() rule {
	d := b.rules.LocalPods
	var parts []rule
	for _, c := range d.CIDRs {
		if servicemodel.FamilyOf(c.Addr()) == b.f.model {
			parts = append(parts, b.prefix("saddr", b.f.saddr, c, nftwire.CmpNeq))
		}
	}
	if d.Bridge != "" {
		name := make([]byte, 16) // IFNAMSIZ
		copy(name, d.Bridge)
		parts = append(parts, rule{fmt.Sprintf("iifname != %q", d.Bridge), []nftwire.Expr{nftwire.Meta(nftwire.MetaIIFName, nftwire.Word(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), name)}})
	}
	if d.InterfacePrefix != "" {
		parts = append(parts, rule{fmt.Sprintf("iifname != %q", d.InterfacePrefix+"*"),
			[]nftwire.Expr{nftwire.Meta(nftwire.MetaIIFName, nftwire.Word(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), []byte(d.InterfacePrefix))}})
	}
	return join(parts...)
}

// prefix matches an address of the network header that is in p, or is not.
func (b *builder) prefix(name string, offset uint32, p netip.Prefix, op uint32) rule {
	p = p.Masked()
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	mask := make([]byte, b.f.addrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return rule{b.f.name + " " + name + sign + p.String(), []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, offset, b.f.addrLen, nftwire.Word(0)),
		nftwire.Bitwise(nftwire.Word(0), mask, make([]byte, len(mask))), nftwire.Compare(op, nftwire.Word(0), nftwire.AppendAddr(nil, p.Addr()))}}
}

// frontends makes the chains that decide about the first packet of a connection to a frontend.
func (b *builder) frontends(kind string) {
	notPods, notHost := b.notFromPods(), b.fibLocal("saddr", nftwire.FIBSaddr, nftwire.CmpNeq)
	drop, accept := b.verdict(nftwire.VerdictDrop, ""), b.verdict(nftwire.VerdictAccept, "")
	b.chain(chain{name: kind + "-external"},
		join(b.in(kind, kind+setExtDrop), drop), join(b.in(kind, kind+setExtReject), b.reject()), accept)
	var rules []rule
	if kind == kindService {
		text, load, n := b.key(kind)
		load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.saddr, b.f.addrLen, nftwire.Word(n)), nftwire.Lookup(setSources, true))
		rules = append(rules, join(b.in(kind, setRestricted), rule{text + " . " + b.f.name + " saddr != @" + setSources, load}, drop))
	}
	text, load, _ := b.key(kind)
	mark := rule{"meta mark set " + text + " map @" + kind + setMarks, append(load, nftwire.LookupMap(kind+setMarks), nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0)))}
	rules = append(rules,
		join(b.in(kind, kind+setSplit), notPods, notHost, b.verdict(nftwire.VerdictGoto, kind+"-external")),
		join(b.in(kind, kind+setDrop), drop), join(b.in(kind, kind+setReject), b.reject()), mark, accept)
	b.chain(chain{name: kind}, rules...)
}

// admit makes the chains for the first packets of connections.
func (b *builder) admit() {
	b.chain(chain{name: "admit"},
		join(b.in(kindService, kindService+"s"), b.verdict(nftwire.VerdictGoto, kindService)),
		join(b.in(kindNodePort, kindNodePort+"s"), b.daddrIn(setNodeAddrs), b.verdict(nftwire.VerdictGoto, kindNodePort)))
	unused := []rule{join(b.daddrIn(setClusterIPs), b.reject())}
	for _, p := range b.rules.ServiceCIDRs {
		if servicemodel.FamilyOf(p.Addr()) == b.f.model {
			unused = append(unused, join(b.prefix("daddr", b.f.daddr, p, nftwire.CmpEq), b.verdict(nftwire.VerdictDrop, "")))
		}
	}
	b.chain(chain{name: "no-service"}, unused...)
}

// masquerade makes the chains that decide, for the first packet of a connection that IPVS has sent on, whether it is masqueraded.
func (b *builder) masquerade() {
	f, masq := b.f, rule{"masquerade fully-random", []nftwire.Expr{nftwire.Masquerade()}}
	notPods, host := b.notFromPods(), b.fibLocal("saddr", nftwire.FIBSaddr, nftwire.CmpEq)
	hairpin := rule{fmt.Sprintf("%s saddr . %s daddr @%s", f.name, f.name, setHairpins),
		[]nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, f.saddr, f.addrLen, nftwire.Word(0)), nftwire.Payload(nftwire.BaseNetwork, f.daddr, f.addrLen, nftwire.Word(f.addrLen)), nftwire.Lookup(setHairpins, false)}}
	for _, k := range kinds {
		rules := []rule{join(hairpin, masq)}
		if k == kindService {
			rules = append(rules, join(b.fromItself(), masq))
		}
		b.chain(chain{name: k + "-postrouting"}, append(rules,
			join(b.flowIn(k, k+setMasqAll), masq),
			join(b.flowIn(k, k+setMasqNotPod), notPods, masq),
			join(b.flowIn(k, k+setMasqHost), notPods, host, masq))...)
	}
}

// fromItself matches what the host sends to a service from the address of the service itself. It does so if the address is bound to a device; answers
// must come back here.
func (b *builder) fromItself() rule {
	_, load := b.flowKey(kindService)
	load[0] = nftwire.Payload(nftwire.BaseNetwork, b.f.saddr, b.f.addrLen, nftwire.Word(0))
	return rule{b.f.name + " saddr . ct original protocol . ct original proto-dst @" + kindService + "s", append(load, nftwire.Lookup(kindService+"s", false))}
}

const (
	stateNew   = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	translated = 0x30   // IPS_SRC_NAT, IPS_DST_NAT (enum ip_conntrack_status in include/uapi/linux/netfilter/nf_conntrack_common.h)
)

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). IPVS works at -98 in the output hook and at 99 in the input hook.
const (
	prioUnmark   = -300
	prioSteer    = -150
	prioSNAT     = 100
	prioUnmarkIn = 110
	prioReset    = 110
)

// mark loads the packet mark, applies a mask and an exclusive or, and does something with it.
func mark(mask, xor uint32, then nftwire.Expr) []nftwire.Expr {
	return []nftwire.Expr{nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)), nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(mask), nftwire.Native32(xor)), then}
}

// markIs matches packets whose mark has these bits in the mask.
func markIs(mask, bits uint32) rule {
	return rule{fmt.Sprintf("meta mark & 0x%08x == 0x%08x", mask, bits), mark(mask, 0, nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), nftwire.Native32(bits)))}
}

// setMark keeps bits of the mark and sets others.
func setMark(keep, set uint32) rule {
	text := fmt.Sprintf("meta mark set meta mark & 0x%08x", keep)
	if set != 0 {
		text += fmt.Sprintf(" | 0x%08x", set)
	}
	return rule{text, mark(keep, set, nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0)))}
}

// hooks makes the base chains.
func (b *builder) hooks() {
	original := rule{"ct direction original", []nftwire.Expr{nftwire.CT(nftwire.CTDirection, nftwire.Word(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), []byte{0})}}
	steer := rule{fmt.Sprintf("meta mark set meta mark | 0x%08x", steerBit), mark(^steerBit, steerBit, nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0)))}
	isNew := rule{"ct state new", []nftwire.Expr{nftwire.CT(nftwire.CTState, nftwire.Word(0)),
		nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(stateNew), nftwire.Native32(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), nftwire.Native32(0))}}
	services := b.in(kindService, kindService+"s")
	unmark := []rule{join(markIs(splitMarks, splitMarks), setMark(0, 0)), join(markIs(steerBit, steerBit), setMark(^steerBit, 0))}
	b.chain(chain{"unmark-output", "filter", hookOutput, prioUnmark}, append([]rule{
		join(markIs(splitMarks, splitMarks), services, setMark(0, sentMark)), join(markIs(steerBit, steerBit), services, setMark(^splitMarks, sentMark))},
		unmark...)...)
	b.chain(chain{"unmark-postrouting", "filter", hookPostrouting, prioUnmarkIn}, append(unmark, join(markIs(splitMarks, sentMark), setMark(^splitMarks, 0)))...)
	b.leads(original, steer, isNew, services)
	// What is led here and gets past IPVS as it came belongs to a connection that it has forgotten. The address is nobody's, so the machine itself cannot
	// answer.
	b.chain(chain{"input", "filter", hookInput, prioReset}, join(markIs(steerBit, steerBit),
		rule{"meta l4proto tcp", []nftwire.Expr{nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), []byte{byte(servicemodel.TCP)})}},
		b.fibLocal("daddr", nftwire.FIBDaddr, nftwire.CmpNeq), rule{"reject with tcp reset", []nftwire.Expr{nftwire.ResetTCP()}}))
	b.chain(chain{"postrouting", "nat", hookPostrouting, prioSNAT},
		join(b.flowIn(kindService, kindService+"s"), b.verdict(nftwire.VerdictGoto, kindService+"-postrouting")),
		join(b.flowIn(kindNodePort, kindNodePort+"s"), b.verdict(nftwire.VerdictGoto, kindNodePort+"-postrouting")))
}

// leads makes the chains that lead packets to IPVS.
func (b *builder) leads(original, steer, isNew, services rule) {
	// Where packets are forwarded unchanged, answers need not come this way: conntrack, which then sees half of a connection, takes it for invalid.
	halves := b.in(kindService, setRouted)
	admit := join(isNew, b.verdict(nftwire.VerdictJump, "admit"))
	elsewhere := join(isNew, b.fibLocal("daddr", nftwire.FIBDaddr, nftwire.CmpNeq), b.verdict(nftwire.VerdictJump, "no-service"))
	backwards := join(b.backwards(), services, b.fibLocal("daddr", nftwire.FIBDaddr, nftwire.CmpNeq), steer)
	b.chain(chain{"prerouting", "filter", hookPrerouting, prioSteer},
		join(original, b.flowIn(kindService, kindService+"s"), steer), backwards, join(halves, steer), admit, elsewhere)
	b.chain(chain{"output", "route", hookOutput, prioSteer},
		join(markIs(splitMarks, sentMark), b.verdict(nftwire.VerdictAccept, "")), join(services, original, steer), backwards, admit, elsewhere)
}

// backwards matches what conntrack takes for answers in a flow that it does not translate. If the first packet that conntrack sees of a connection comes from the
// endpoint, since the flow was deleted or the table emptied, it makes a flow of it in which the endpoint is the client: IPVS has translated the packet by
// then, and conntrack expects answers to the service's address. What the client sends is to go to IPVS as before.
func (b *builder) backwards() rule {
	reply := rule{"ct direction reply", []nftwire.Expr{nftwire.CT(nftwire.CTDirection, nftwire.Word(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), []byte{1})}}
	return join(reply, rule{fmt.Sprintf("ct status & 0x%x == 0x0", translated), []nftwire.Expr{nftwire.CT(nftwire.CTStatus, nftwire.Word(0)),
		nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(translated), nftwire.Native32(0)), nftwire.Compare(nftwire.CmpEq, nftwire.Word(0), nftwire.Native32(0))}})
}
