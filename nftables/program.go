package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the rules of one family.
type builder struct {
	f     *nftwire.Family
	rules servicemodel.Rules
	shape *shape
	prog  nftwire.Program
	anon  uint16 // how many anonymous sets there are
}

// newProgram returns the program of a table: its chains and rules. It depends on the node-wide
// rules and on which features are in use, never on what the services are.
func newProgram(f *nftwire.Family, r servicemodel.Rules, s *shape) nftwire.Program {
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
func (b *builder) loadKey(k *kind) (string, []nftwire.Expr, int) {
	f := b.f
	if k == kindNodePort {
		return "meta l4proto . th dport",
			[]nftwire.Expr{nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(0)),
				nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(4))}, 8
	}
	n := f.AddrLen
	return f.Name + " daddr . meta l4proto . th dport",
		[]nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, f.Daddr, n, nftwire.Word(0)),
			nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(n)),
			nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(n+4))}, n + 8
}

// in matches packets to a frontend in the kind's set.
func (b *builder) in(k *kind, set string) nftwire.Rule {
	text, exprs, _ := b.loadKey(k)
	return nftwire.Rule{Text: text + " @" + set, Exprs: append(exprs, nftwire.Lookup(set, false))}
}

// dnatMap sends packets to where the map says for a key; no entry, no match.
func (b *builder) dnatMap(key string, load []nftwire.Expr, name string) nftwire.Rule {
	return nftwire.Rule{Text: fmt.Sprintf("dnat %s to %s map @%s", b.f.Name, key, name),
		Exprs: append(load, nftwire.LookupMap(name), nftwire.DNAT(b.f.NFProto, nftwire.Word(0),
			nftwire.Word(b.f.AddrLen)))}
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
	var rules []nftwire.Rule
	for _, n := range sizes {
		text, load, l := b.loadKey(k)
		rules = append(rules, nftwire.Join(
			b.in(k, fmt.Sprint(k.prefix, size, n)),
			b.dnatMap(fmt.Sprintf("%s . numgen random mod %d", text, n),
				append(load, nftwire.NumgenRandom(n, nftwire.Word(l))), k.prefix+eps)))
	}
	b.prog.Add(name, rules...)
}

// kind makes the chain that packets to the frontends of a kind go to, once in a connection's life.
func (b *builder) kind(k *kind) {
	notPods, fromHost := b.notFromPods(), b.fib("saddr", nftwire.FIBSaddr, nftwire.CmpEq)
	rules := []nftwire.Rule{
		nftwire.Join(b.in(k, k.prefix+setMasqAll), b.mark()),
		nftwire.Join(b.in(k, k.prefix+setMasqNotPods), notPods, b.mark()),
		nftwire.Join(b.in(k, k.prefix+setMasqHost), notPods, fromHost, b.mark()),
	}
	if len(b.shape.affinity) > 0 {
		rules = append(rules,
			nftwire.Join(b.byClient(b.f.Name+" saddr", nftwire.Payload(nftwire.BaseNetwork,
				b.f.Saddr, b.f.AddrLen, nftwire.Word(nftwire.Hashed)), nftwire.VerdictJump,
				chainRemembered)))
	}
	rules = append(rules,
		nftwire.Join(b.in(k, k.prefix+setSplit), notPods, b.fib("saddr", nftwire.FIBSaddr,
			nftwire.CmpNeq), b.verdict(nftwire.VerdictGoto, k.prefix+externalBalance)),
		nftwire.Join(b.verdict(nftwire.VerdictGoto, k.prefix+balanceSuffix)))
	b.prog.Add(k.chain, rules...)
}

// notFromPods matches packets that do not come from pods; all packets, if pods cannot be told.
func (b *builder) notFromPods() nftwire.Rule {
	d := b.rules.LocalPods
	var p nftwire.Rule
	add := func(text string, exprs ...nftwire.Expr) {
		p.Text = strings.TrimSpace(p.Text + " " + text)
		p.Exprs = append(p.Exprs, exprs...)
	}
	for _, c := range d.CIDRs {
		if servicemodel.FamilyOf(c.Addr()) == b.f.Model {
			q := b.prefix("saddr", b.f.Saddr, c, nftwire.CmpNeq)
			add(q.Text, q.Exprs...)
		}
	}
	if d.Bridge != "" {
		name := make([]byte, ifNameSize)
		copy(name, d.Bridge)
		add(fmt.Sprintf("iifname != %q", d.Bridge), nftwire.Meta(nftwire.MetaIIFName,
			nftwire.Word(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0), name))
	}
	if d.InterfacePrefix != "" {
		add(fmt.Sprintf("iifname != %q", d.InterfacePrefix+"*"), nftwire.Meta(nftwire.MetaIIFName,
			nftwire.Word(0)), nftwire.Compare(nftwire.CmpNeq, nftwire.Word(0),
			[]byte(d.InterfacePrefix)))
	}
	return p
}

const ifNameSize = 16 // IFNAMSIZ

// prefix matches an address of the network header that is in p, or is not.
func (b *builder) prefix(name string, offset uint32, p netip.Prefix, op uint32) nftwire.Rule {
	p = p.Masked()
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	text := b.f.Name + " " + name + sign + strings.TrimSuffix(p.String(),
		fmt.Sprintf("/%d", b.f.AddrLen*8))
	addr := nftwire.AppendAddr(nil, p.Addr())
	load := nftwire.Payload(nftwire.BaseNetwork, offset, b.f.AddrLen, nftwire.Word(0))
	if p.Bits() == b.f.AddrLen*8 {
		return nftwire.Rule{Text: text,
			Exprs: []nftwire.Expr{load, nftwire.Compare(op, nftwire.Word(0), addr)}}
	}
	if p.Bits()%8 == 0 && p.Bits() > 0 { // as nft does: the leading bytes are enough
		n := p.Bits() / 8
		return nftwire.Rule{Text: text,
			Exprs: []nftwire.Expr{nftwire.Payload(nftwire.BaseNetwork, offset, n, nftwire.Word(0)),
				nftwire.Compare(op, nftwire.Word(0), addr[:n])}}
	}
	mask := make([]byte, b.f.AddrLen)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return nftwire.Rule{Text: text,
		Exprs: []nftwire.Expr{load, nftwire.Bitwise(nftwire.Word(0), mask, make([]byte, len(mask))),
			nftwire.Compare(op, nftwire.Word(0), addr)}}
}

// fib matches the type of an address: local to this host, or not.
func (b *builder) fib(name string, flag, op uint32) nftwire.Rule {
	sign := " "
	if op == nftwire.CmpNeq {
		sign = " != "
	}
	return nftwire.Rule{Text: "fib " + name + " type" + sign + "local",
		Exprs: []nftwire.Expr{nftwire.FIBType(flag, nftwire.Word(0)),
			nftwire.Compare(op, nftwire.Word(0), nftwire.Native32(nftwire.RTNLocal))}}
}

func (b *builder) mark() nftwire.Rule {
	m := b.rules.MasqueradeMark
	return nftwire.Rule{Text: fmt.Sprintf("meta mark set meta mark | 0x%08x", m),
		Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaMark, nftwire.Word(0)),
			nftwire.Bitwise(nftwire.Word(0), nftwire.Native32(^m), nftwire.Native32(m)),
			nftwire.MetaSet(nftwire.MetaMark, nftwire.Word(0))}}
}

func (b *builder) verdict(code int32, to string) nftwire.Rule {
	text := map[int32]string{nftwire.VerdictJump: "jump " + to, nftwire.VerdictGoto: "goto " + to,
		nftwire.VerdictDrop: "drop"}[code]
	return nftwire.Rule{Text: text, Exprs: []nftwire.Expr{nftwire.Verdict(code, to)}}
}

func (b *builder) reject() nftwire.Rule {
	icmp := map[string]string{"ip": "icmp", "ip6": "icmpv6"}[b.f.Name]
	return nftwire.Rule{Text: "reject with " + icmp + " port-unreachable",
		Exprs: []nftwire.Expr{nftwire.Reject(b.f.Unreach)}}
}
