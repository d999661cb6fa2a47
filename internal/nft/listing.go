package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// ListRule writes the expressions of a rule that anybody made, for people: what is common as nft
// writes it, other expressions by their names. Extensions of x_tables are written as "-m name" and
// "-j NAME". It is not for loading. family is that of the rule's table.
func ListRule(family uint8, exprs []byte) string {
	l := listing{family: family}
	if !EachExpr(exprs, l.expr) {
		l.say("…")
	}
	return strings.Join(l.out, " ")
}

// listing is a rule that is being written.
type listing struct {
	family uint8
	loaded []operand
	out    []string
}

func (l *listing) say(format string, args ...any) {
	l.out = append(l.out, fmt.Sprintf(format, args...))
}

// registerAt is where a register begins: those with long numbers have 16 bytes.
func registerAt(reg uint32) uint32 {
	if reg < reg32_00 {
		return (reg - Reg1) * 16
	}
	return (reg - reg32_00) * 4
}

func (l *listing) load(reg uint32, o operand) {
	o.at = registerAt(reg)
	l.loaded = slices.DeleteFunc(l.loaded, func(p operand) bool { return p.at == o.at })
	l.loaded = append(l.loaded, o)
}

// take returns what registers hold from one on, and forgets all of them.
func (l *listing) take(reg uint32) operand {
	at := registerAt(reg)
	var texts []string
	var first operand
	for _, o := range l.loaded {
		if o.at < at {
			continue
		}
		if len(texts) == 0 {
			first = o
		}
		texts = append(texts, o.text)
	}
	l.loaded = nil
	first.text = strings.Join(texts, " . ")
	return first
}

// fields are the attributes of an expression: numbers, bytes and texts.
type fields map[uint16][]byte

func (f fields) u32(typ uint16) uint32 {
	if len(f[typ]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(f[typ])
}

func (f fields) text(typ uint16) string { return string(CString(f[typ])) }

// value is NFTA_DATA_VALUE in an attribute.
func (f fields) value(typ uint16) []byte { return fieldsOf(f[typ])[DataValue] }

func fieldsOf(attrs []byte) fields {
	f := fields{}
	it := rawnl.Attrs(attrs)
	for it.Next() {
		f[it.Type()] = it.Data()
	}
	return f
}

// plain are the expressions that load or match nothing, and what is written of them.
var plain = map[string]string{"counter": "counter", "limit": "limit", "log": "log",
	"masq": "masquerade", "redir": "redirect", "notrack": "notrack", "queue": "queue",
	"tproxy": "tproxy", "synproxy": "synproxy", "flow_offload": "flow add", "last": "last"}

func (l *listing) expr(e ExprInfo) bool {
	f, name := fieldsOf(e.Attrs), string(e.Name)
	switch name {
	case "payload":
		l.payload(f)
	case "meta":
		l.meta(f)
	case "ct":
		l.ct(f)
	case "fib":
		l.fib(f)
	case "bitwise":
		l.bitwise(f)
	case "cmp":
		l.cmp(f)
	case "range":
		o := l.take(f.u32(AttrRangeSReg))
		l.say("%s %s-%s", o.text, o.value(f.value(AttrRangeFrom)), o.value(f.value(AttrRangeTo)))
	case "lookup":
		l.lookup(f)
	case "immediate":
		l.immediate(f)
	case "match", "target":
		l.extension(name, f)
	case "numgen":
		l.load(f.u32(attrNumgenDReg), operand{text: fmt.Sprintf("numgen mod %d",
			f.u32(attrNumgenModulus))})
	case "hash":
		o := l.take(f.u32(attrHashSReg))
		l.load(f.u32(attrHashDReg), operand{text: fmt.Sprintf("jhash %s mod %d", o.text,
			f.u32(attrHashModulus))})
	default:
		l.statement(name, f)
	}
	return true
}

// statement writes what does something.
func (l *listing) statement(name string, f fields) {
	text, known := plain[name]
	switch {
	case known:
		l.say("%s", text)
	case name == "reject" && f.u32(attrRejectType) == rejectTCPReset:
		l.say("reject with tcp reset")
	case name == "reject":
		l.say("reject")
	case name == "nat":
		kind := "snat"
		if f.u32(attrNATType) == natDNAT {
			kind = "dnat"
		}
		l.say("%s to %s", kind, l.take(f.u32(attrNATRegAddrMin)).text)
	case name == "dynset":
		o := l.take(f.u32(attrDynsetKeyReg))
		l.say("update @%s { %s }", f.text(attrDynsetSet), o.text)
	default:
		l.say("%s", name)
	}
}

// payload loads a field of a header, or a part of one.
func (l *listing) payload(f fields) {
	base, offset, n := f.u32(AttrPayloadBase), f.u32(AttrPayloadOffset), f.u32(AttrPayloadLen)
	o := operand{text: fmt.Sprintf("@%d,%d,%d", base, offset*8, n*8)}
	switch field := [2]uint32{offset, n}; {
	case base == TransportHeader && field == [2]uint32{0, portLen}:
		o = operand{text: "th sport", kind: valuePort}
	case base == TransportHeader && field == [2]uint32{dportOffset, portLen}:
		o = operand{text: "th dport", kind: valuePort}
	case base == NetworkHeader:
		for _, fam := range Families {
			if known, ok := l.network(fam, offset, n); ok {
				o = known
			}
		}
	}
	l.load(f.u32(AttrPayloadDReg), o)
}

// network is a field of the header of a family. A table of the family inet has both headers: the
// addresses of the one are not where those of the other are.
func (l *listing) network(f *Family, offset, n uint32) (operand, bool) {
	own := l.family == f.NFProto
	protocol := map[*Family]operand{IPv4: {at: 9, text: "ip protocol"},
		IPv6: {at: 6, text: "ip6 nexthdr"}}[f]
	switch whole := int(n) == f.AddrLen; {
	case own && offset == protocol.at && n == protocolLen:
		return operand{text: protocol.text, kind: valueProtocol}, true
	case int(n) > f.AddrLen || !own && !(whole && l.family == protoInet):
		return operand{}, false
	case offset == f.SaddrOffset:
		return operand{text: f.Name + " saddr", kind: valueAddr, full: f.AddrLen}, true
	case offset == f.DaddrOffset:
		return operand{text: f.Name + " daddr", kind: valueAddr, full: f.AddrLen}, true
	}
	return operand{}, false
}

const protoInet = 1 // NFPROTO_INET

// metaNames are the keys of meta that rules are often about.
var metaNames = map[uint32]operand{
	MetaMark: {text: "meta mark", kind: valueNative}, 4: {text: "iif", kind: valueNative},
	5: {text: "oif", kind: valueNative}, MetaIIFName: {text: "iifname", kind: valueName},
	7: {text: "oifname", kind: valueName}, 10: {text: "meta skuid", kind: valueNative},
	metaNFTrace: {text: "meta nftrace"}, 15: {text: "meta nfproto"},
	MetaL4Proto: {text: "meta l4proto", kind: valueProtocol}, 17: {text: "iifname (bridge)"},
}

func (l *listing) meta(f fields) {
	o, known := metaNames[f.u32(AttrMetaKey)]
	if !known {
		o.text = fmt.Sprintf("meta key %d", f.u32(AttrMetaKey))
	}
	if sreg, sets := f[attrMetaSReg]; sets && len(sreg) == 4 {
		l.say("%s set %s", o.text, l.take(f.u32(attrMetaSReg)).text)
		return
	}
	l.load(f.u32(AttrMetaDReg), o)
}

// ctNames are the keys of ct that rules are often about.
var ctNames = map[uint32]operand{
	ctState: {text: "state", kind: valueCTState}, ctDirection: {text: "direction"},
	ctStatus: {text: "status", kind: valueNative}, 3: {text: "mark", kind: valueNative},
	ctProtocol: {text: "protocol", kind: valueProtocol},
	ctProtoSrc: {text: "proto-src", kind: valuePort},
	ctProtoDst: {text: "proto-dst", kind: valuePort}, ctSrcIP: {text: "ip saddr", kind: valueAddr},
	ctDstIP: {text: "ip daddr", kind: valueAddr}, ctSrcIP6: {text: "ip6 saddr", kind: valueAddr},
	ctDstIP6: {text: "ip6 daddr", kind: valueAddr},
}

func (l *listing) ct(f fields) {
	o, known := ctNames[f.u32(attrCTKey)]
	if !known {
		o.text = fmt.Sprintf("key %d", f.u32(attrCTKey))
	}
	direction := ""
	if d := f[attrCTDirection]; len(d) == 1 {
		direction = [...]string{"original ", "reply "}[d[0]&1]
	}
	o.text = "ct " + direction + o.text
	l.load(f.u32(attrCTDReg), o)
}

func (l *listing) fib(f fields) {
	which := "saddr"
	if f.u32(attrFIBFlags)&fibDaddr != 0 {
		which = "daddr"
	}
	if f.u32(attrFIBResult) == fibInterface {
		l.load(f.u32(attrFIBDReg), operand{text: "fib " + which + " . iif oif exists"})
		return
	}
	l.load(f.u32(attrFIBDReg), operand{text: "fib " + which + " type", kind: valueNative})
}

// bitwise changes what is loaded: an and is kept for the comparison that follows.
func (l *listing) bitwise(f fields) {
	o := l.take(f.u32(AttrBitwiseSReg))
	mask, xor := f.value(AttrBitwiseMask), f.value(AttrBitwiseXor)
	if o.mask = mask; slices.ContainsFunc(xor, func(b byte) bool { return b != 0 }) {
		o.text = fmt.Sprintf("(%s & %s ^ %s)", o.text, o.value(mask), o.value(xor))
		o.mask = nil
	}
	l.load(f.u32(AttrBitwiseDReg), o)
}

// cmpSigns are how a comparison is written, by its number.
var cmpSigns = [...]string{"", "!= ", "< ", "<= ", "> ", ">= "}

func (l *listing) cmp(f fields) {
	o, op, v := l.take(f.u32(AttrCmpSReg)), f.u32(AttrCmpOp), f.value(AttrCmpData)
	sign := "? "
	if int(op) < len(cmpSigns) {
		sign = cmpSigns[op]
	}
	zero := !slices.ContainsFunc(v, func(b byte) bool { return b != 0 })
	switch ones, prefix := prefixLen(o.mask); {
	case o.mask == nil:
		l.say("%s %s%s", o.text, sign, o.value(v))
	case zero && op == CmpNeq: // any of these bits
		l.say("%s %s", o.text, o.value(o.mask))
	case o.kind == valueAddr && prefix:
		l.say("%s %s%s/%d", o.text, sign, o.value(v), ones)
	default:
		l.say("%s & %s %s%s", o.text, o.value(o.mask), cmp2(sign), o.value(v))
	}
}

// cmp2 writes a comparison after a mask, where equality has a sign.
func cmp2(sign string) string {
	if sign == "" {
		return "== "
	}
	return sign
}

func (l *listing) lookup(f fields) {
	o, set := l.take(f.u32(attrLookupSReg)), "@"+f.text(attrLookupSet)
	if dreg, maps := f[attrLookupDReg]; maps && len(dreg) == 4 {
		if o.text += " map " + set; f.u32(attrLookupDReg) != RegVerdict {
			l.load(f.u32(attrLookupDReg), operand{text: o.text})
			return
		}
		l.say("%s", o.text)
		return
	}
	sign := ""
	if f.u32(attrLookupFlags)&lookupInvert != 0 {
		sign = "!= "
	}
	l.say("%s %s%s", o.text, sign, set)
}

func (l *listing) immediate(f fields) {
	data := fieldsOf(f[AttrImmediateData])
	if f.u32(AttrImmediateDReg) != RegVerdict {
		l.load(f.u32(AttrImmediateDReg), operand{text: (&operand{}).value(data[DataValue])})
		return
	}
	v := fieldsOf(data[DataVerdict])
	l.say("%s", VerdictText(int32(v.u32(AttrVerdictCode)), v.text(AttrVerdictChain)))
}

// VerdictText writes a verdict as nft does.
func VerdictText(code int32, chain string) string {
	switch code {
	case VerdictReturn:
		return "return"
	case VerdictDrop, VerdictAccept, VerdictJump, VerdictGoto:
		return Verdict{code, chain}.text()
	}
	switch code & VerdictMask {
	case VerdictQueue:
		return "queue"
	case VerdictStolen:
		return "stolen"
	}
	return "continue"
}

// extension writes a match or target of x_tables. That of xt_comment is its text.
func (l *listing) extension(kind string, f fields) {
	name := f.text(AttrExtensionName)
	switch {
	case kind == "target":
		l.say("-j %s", name)
	case name == "comment":
		l.say("/* %s */", f.text(AttrExtensionInfo))
	default:
		l.say("-m %s", name)
	}
}

// Refuses reports whether a rule answers that a packet is refused, rather than drop it in silence.
func (r *RuleInfo) Refuses() (yes bool) {
	EachExpr(r.Exprs, func(e ExprInfo) bool {
		name := fieldsOf(e.Attrs).text(AttrExtensionName)
		yes = yes || string(e.Name) == "reject" ||
			string(e.Name) == "target" && name == "REJECT"
		return true
	})
	return yes
}
