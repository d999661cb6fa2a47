package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the rules of one family.
type builder struct {
	f     *nft.Family
	rules servicemodel.Rules
	shape *shape
	prog  nft.Program
	anon  uint16 // how many anonymous sets there are
}

// newProgram returns the program of a table: its chains and rules. It depends on the node-wide
// rules and on which features are in use, never on what the services are.
func newProgram(f *nft.Family, r servicemodel.Rules, s *shape) nft.Program {
	b := &builder{f: f, rules: r, shape: s}
	for i, k := range kinds {
		b.balance(k, true, s.sizes[i][1])
		b.balance(k, false, s.sizes[i][0])
		b.kind(k)
	}
	b.dispatch()
	b.noEndpoints()
	if len(s.affinity) > 0 {
		b.remembered()
		b.learn()
	}
	b.hooks()
	return b.prog
}

// loadKey loads the key of a frontend into the registers from NFT_REG_1 on, and returns the length
// loaded.
func (b *builder) loadKey(k *kind) (string, []nft.Expr, int) {
	f := b.f
	if k == kindNodePort {
		return "meta l4proto . th dport",
			[]nft.Expr{nft.Meta(nft.MetaL4Proto, nft.Word(0)),
				nft.Payload(nft.BaseTransport, 2, 2, nft.Word(4))}, 8
	}
	n := f.AddrLen
	return f.Name + " daddr . meta l4proto . th dport",
		[]nft.Expr{nft.Payload(nft.BaseNetwork, f.Daddr, n, nft.Word(0)),
			nft.Meta(nft.MetaL4Proto, nft.Word(n)),
			nft.Payload(nft.BaseTransport, 2, 2, nft.Word(n+4))}, n + 8
}

// in matches packets to a frontend in the kind's set.
func (b *builder) in(k *kind, set string) nft.Rule {
	text, exprs, _ := b.loadKey(k)
	return nft.Rule{Text: text + " @" + set, Exprs: append(exprs, nft.Lookup(set, false))}
}

// dnatMap sends packets to where the map says for a key; no entry, no match.
func (b *builder) dnatMap(key string, load []nft.Expr, name string) nft.Rule {
	return nft.Rule{Text: fmt.Sprintf("dnat %s to %s map @%s", b.f.Name, key, name),
		Exprs: append(load, nft.LookupMap(name), nft.DNAT(b.f.NFProto, nft.Word(0),
			nft.Word(b.f.AddrLen)))}
}

// The names of the chains that draw a slot end so.
const (
	balanceSuffix   = "-balance"
	externalBalance = "-external" + balanceSuffix
)

// balance makes the chain with a rule for each number of slots: the frontends that have so many
// draw one of them.
func (b *builder) balance(k *kind, external bool, sizes []int) {
	size, eps, name := setSize, setEndpoints, k.prefix+balanceSuffix
	if external {
		size, eps, name = setExternalSize, setExternalEps, k.prefix+externalBalance
	}
	var rules []nft.Rule
	for _, n := range sizes {
		text, load, l := b.loadKey(k)
		rules = append(rules, nft.Join(
			b.in(k, fmt.Sprint(k.prefix, size, n)),
			b.dnatMap(fmt.Sprintf("%s . numgen random mod %d", text, n),
				append(load, nft.NumgenRandom(n, nft.Word(l))), k.prefix+eps)))
	}
	b.prog.Add(name, rules...)
}

// kind makes the chain that packets to the frontends of a kind go to, once in a connection's life.
func (b *builder) kind(k *kind) {
	notPods, fromHost := b.notFromPods(), b.fib("saddr", nft.FIBSaddr, nft.CmpEq)
	rules := []nft.Rule{
		nft.Join(b.in(k, k.prefix+setMasqAll), b.mark()),
		nft.Join(b.in(k, k.prefix+setMasqNotPods), notPods, b.mark()),
		nft.Join(b.in(k, k.prefix+setMasqHost), notPods, fromHost, b.mark()),
	}
	if len(b.shape.affinity) > 0 {
		rules = append(rules,
			nft.Join(b.byClient(b.f.Name+" saddr", nft.Payload(nft.BaseNetwork,
				b.f.Saddr, b.f.AddrLen, nft.Word(nft.Hashed)), nft.VerdictJump,
				chainRemembered)))
	}
	rules = append(rules,
		nft.Join(b.in(k, k.prefix+setSplit), notPods, b.fib("saddr", nft.FIBSaddr,
			nft.CmpNeq), b.verdict(nft.VerdictGoto, k.prefix+externalBalance)),
		nft.Join(b.verdict(nft.VerdictGoto, k.prefix+balanceSuffix)))
	b.prog.Add(k.chain, rules...)
}

// notFromPods matches packets that do not come from pods; all packets, if pods cannot be told.
func (b *builder) notFromPods() nft.Rule {
	d := b.rules.LocalPods
	var p nft.Rule
	add := func(text string, exprs ...nft.Expr) {
		p.Text = strings.TrimSpace(p.Text + " " + text)
		p.Exprs = append(p.Exprs, exprs...)
	}
	for _, c := range d.CIDRs {
		if servicemodel.FamilyOf(c.Addr()) == b.f.Model {
			q := b.prefix("saddr", b.f.Saddr, c, nft.CmpNeq)
			add(q.Text, q.Exprs...)
		}
	}
	if d.Bridge != "" {
		name := make([]byte, ifNameSize)
		copy(name, d.Bridge)
		add(fmt.Sprintf("iifname != %q", d.Bridge), nft.Meta(nft.MetaIIFName,
			nft.Word(0)), nft.Compare(nft.CmpNeq, nft.Word(0), name))
	}
	if d.InterfacePrefix != "" {
		add(fmt.Sprintf("iifname != %q", d.InterfacePrefix+"*"), nft.Meta(nft.MetaIIFName,
			nft.Word(0)), nft.Compare(nft.CmpNeq, nft.Word(0),
			[]byte(d.InterfacePrefix)))
	}
	return p
}

const ifNameSize = 16 // IFNAMSIZ

// prefix matches an address of the network header that is in p, or is not.
func (b *builder) prefix(name string, offset uint32, p netip.Prefix, op uint32) nft.Rule {
	p = p.Masked()
	sign := " "
	if op == nft.CmpNeq {
		sign = " != "
	}
	text := b.f.Name + " " + name + sign + strings.TrimSuffix(p.String(),
		fmt.Sprintf("/%d", b.f.AddrLen*8))
	addr := nft.AppendAddr(nil, p.Addr())
	load := nft.Payload(nft.BaseNetwork, offset, b.f.AddrLen, nft.Word(0))
	if p.Bits() == b.f.AddrLen*8 {
		return nft.Rule{Text: text,
			Exprs: []nft.Expr{load, nft.Compare(op, nft.Word(0), addr)}}
	}
	if p.Bits()%8 == 0 && p.Bits() > 0 { // as nft does: the leading bytes are enough
		n := p.Bits() / 8
		return nft.Rule{Text: text,
			Exprs: []nft.Expr{nft.Payload(nft.BaseNetwork, offset, n, nft.Word(0)),
				nft.Compare(op, nft.Word(0), addr[:n])}}
	}
	mask := make([]byte, b.f.AddrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return nft.Rule{Text: text,
		Exprs: []nft.Expr{load, nft.Bitwise(nft.Word(0), mask, make([]byte, len(mask))),
			nft.Compare(op, nft.Word(0), addr)}}
}

// fib matches the type of an address: local to this host, or not.
func (b *builder) fib(name string, flag, op uint32) nft.Rule {
	sign := " "
	if op == nft.CmpNeq {
		sign = " != "
	}
	return nft.Rule{Text: "fib " + name + " type" + sign + "local",
		Exprs: []nft.Expr{nft.FIBType(flag, nft.Word(0)),
			nft.Compare(op, nft.Word(0), nft.Native32(nft.RTNLocal))}}
}

func (b *builder) mark() nft.Rule {
	m := b.rules.MasqueradeMark
	return nft.Rule{Text: fmt.Sprintf("meta mark set meta mark | 0x%08x", m),
		Exprs: []nft.Expr{nft.Meta(nft.MetaMark, nft.Word(0)),
			nft.Bitwise(nft.Word(0), nft.Native32(^m), nft.Native32(m)),
			nft.MetaSet(nft.MetaMark, nft.Word(0))}}
}

func (b *builder) verdict(code int32, to string) nft.Rule {
	text := map[int32]string{nft.VerdictJump: "jump " + to, nft.VerdictGoto: "goto " + to,
		nft.VerdictDrop: "drop"}[code]
	return nft.Rule{Text: text, Exprs: []nft.Expr{nft.Verdict(code, to)}}
}

func (b *builder) reject() nft.Rule {
	icmp := map[string]string{"ip": "icmp", "ip6": "icmpv6"}[b.f.Name]
	return nft.Rule{Text: "reject with " + icmp + " port-unreachable",
		Exprs: []nft.Expr{nft.Reject(b.f.Unreach)}}
}
