package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// ListRule writes the expressions of any rule for people: common expressions as nft writes them,
// others by their names. Extensions of x_tables are written as "-m name" and "-j NAME". nft cannot
// load the result. family is the family of the rule's table.
func ListRule(family uint8, exprs []byte) string {
	l := listing{family: family}
	for _, f := range Families {
		if f.NFProto == family {
			l.network.family = f
		}
	}
	if !EachExpr(exprs, l.expr) {
		l.say("…")
	}
	return strings.Join(slices.DeleteFunc(l.out, func(s string) bool { return s == "" }), " ")
}

// listing is a rule that is being written.
type listing struct {
	family uint8
	loaded []operand
	out    []string
	// network and transport are the headers whose protocol the rule has matched. lower is the first
	// comparison of a range.
	network, transport header
	lower              struct {
		operand
		text string
		out  int // its index in out plus one; 0: none
	}
}

// header is the known protocol of the header of a layer.
type header struct {
	family   *Family // of the network
	protocol servicemodel.Protocol
	// asked is the index in out of the match of the protocol, plus one. A field of the header makes
	// this match superfluous, because its name tells the protocol, too.
	asked int
}

// named drops the match of the protocol, because a field of the header follows.
func (l *listing) named(h *header) {
	if h.asked > 0 {
		l.out[h.asked-1] = ""
	}
	h.asked = 0
}

func (l *listing) say(format string, args ...any) {
	l.out = append(l.out, fmt.Sprintf(format, args...))
}

// registerAt returns the offset where a register begins. The long registers have small numbers and
// 16 bytes.
func registerAt(reg uint32) uint32 {
	if reg < reg32_00 {
		return (reg - Reg1) * 16
	}
	return (reg - reg32_00) * 4
}

func (l *listing) load(reg uint32, o operand) {
	o.at = registerAt(reg)
	l.forget(o)
	l.loaded = append(l.loaded, o)
}

// peek returns what a register holds.
func (l *listing) peek(reg uint32) operand {
	for _, o := range l.loaded {
		if o.at == registerAt(reg) {
			return o
		}
	}
	return operand{}
}

func (l *listing) forget(o operand) {
	l.loaded = slices.DeleteFunc(l.loaded, func(p operand) bool { return p.at == o.at })
}

// take returns the values in the registers from reg on, and forgets all loaded values.
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

// plain has the expressions that neither load nor match, and their texts.
var plain = map[string]string{"counter": "counter",
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
		o, not := l.take(f.u32(AttrRangeSReg)), ""
		if f.u32(AttrRangeOp) != RangeEq {
			not = "!= "
		}
		l.say("%s %s%s-%s", o.text, not, o.value(f.value(AttrRangeFrom)),
			o.value(f.value(AttrRangeTo)))
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

// statement writes an expression that does not load a value.
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
		l.nat(f)
	case name == "limit":
		l.limit(f)
	case name == "log":
		l.say("log")
		if prefix := f.text(attrLogPrefix); prefix != "" {
			l.say("prefix %q", prefix)
		}
	case name == "dynset":
		o := l.take(f.u32(attrDynsetKeyReg))
		l.say("update @%s { %s }", f.text(attrDynsetSet), o.text)
	default:
		l.say("%s", name)
	}
}

// nat writes a translation. In tables of both families, nft also writes the family.
func (l *listing) nat(f fields) {
	kind, to := "snat", "to "
	if f.u32(attrNATType) == natDNAT {
		kind = "dnat"
	}
	for _, fam := range Families {
		if l.family == protoInet && f.u32(attrNATFamily) == uint32(fam.NFProto) {
			to = fam.Name + " to "
		}
	}
	port := ""
	if reg, has := f[attrNATRegProtoMin]; has && len(reg) == 4 {
		if o := l.peek(binary.BigEndian.Uint32(reg)); o.raw != nil {
			l.forget(o)
			port = ":" + (&operand{kind: valuePort}).value(o.raw[:min(2, len(o.raw))])
		}
	}
	o := l.take(f.u32(attrNATRegAddrMin))
	if o.raw != nil {
		o.text = (&operand{kind: valueAddr}).value(o.raw)
	}
	if port != "" && len(o.raw) == 16 {
		o.text = "[" + o.text + "]"
	}
	l.say("%s %s%s%s", kind, to, o.text, port)
}

// limitUnits are the units of limits, by their number of seconds.
var limitUnits = map[uint64]string{1: "second", 60: "minute", 3600: "hour", 86400: "day",
	604800: "week"}

func (l *listing) limit(f fields) {
	number := func(typ uint16) uint64 {
		if len(f[typ]) != 8 {
			return 0
		}
		return binary.BigEndian.Uint64(f[typ])
	}
	over, burst, what := "", f.u32(attrLimitBurst), " packets"
	if f.u32(attrLimitFlags)&limitInvert != 0 {
		over = "over "
	}
	unit := limitUnits[number(attrLimitUnit)]
	if f.u32(attrLimitType) != 0 { // NFT_LIMIT_PKT_BYTES
		l.say("limit rate %s%d bytes/%s", over, number(attrLimitRate), unit)
		what = " bytes"
	} else {
		l.say("limit rate %s%d/%s", over, number(attrLimitRate), unit)
	}
	if burst != 0 && (what != " packets" || burst != 5) { // other than the default
		l.say("burst %d%s", burst, what)
	}
}

// bitwise changes a loaded value. If it is an and, the mask is kept for the comparison that
// follows.
func (l *listing) bitwise(f fields) {
	o := l.take(f.u32(AttrBitwiseSReg))
	mask, xor := f.value(AttrBitwiseMask), f.value(AttrBitwiseXor)
	if o.mask = mask; slices.ContainsFunc(xor, func(b byte) bool { return b != 0 }) {
		or := len(mask) == len(xor)
		for i := range xor {
			or = or && mask[i] == ^xor[i]
		}
		if or {
			o.text = fmt.Sprintf("%s | %s", o.text, o.value(xor))
		} else {
			o.text = fmt.Sprintf("(%s & %s ^ %s)", o.text, o.value(mask), o.value(xor))
		}
		o.mask = nil
	}
	l.load(f.u32(AttrBitwiseDReg), o)
}

// cmpSigns are the texts of comparisons, by number.
var cmpSigns = [...]string{"", "!= ", "< ", "<= ", "> ", ">= "}

func (l *listing) cmp(f fields) {
	reg, op, v := f.u32(AttrCmpSReg), f.u32(AttrCmpOp), f.value(AttrCmpData)
	if low := l.lower; low.out > 0 && op == CmpLte && registerAt(reg) == low.at {
		l.out[low.out-1] = fmt.Sprintf("%s %s-%s", low.operand.text, low.text, low.value(v))
		l.lower.out = 0
		return
	}
	o := l.take(reg)
	if l.lower.out = 0; op == CmpGte {
		l.lower.operand, l.lower.text, l.lower.out = o, o.value(v), len(l.out)+1
	}
	sign := "? "
	if int(op) < len(cmpSigns) {
		sign = cmpSigns[op]
	}
	zero := !slices.ContainsFunc(v, func(b byte) bool { return b != 0 })
	switch ones, prefix := prefixLen(o.mask); {
	case o.second != "" && o.mask == nil:
		half := len(v) / 2
		l.say("%s %s%s %s %s%s", o.text, sign, o.value(v[:half]), o.second, sign, o.value(v[half:]))
	case o.mask == nil:
		l.say("%s %s%s", o.text, sign, o.value(v))
	case zero && op == CmpNeq: // any of these bits
		l.say("%s %s", o.text, o.value(o.mask))
	case o.kind == valueAddr && prefix:
		l.say("%s %s%s/%d", o.text, sign, o.value(v), ones)
	case o.kind == valueTCPFlags:
		l.say("%s %s%s / %s", o.text, sign, o.value(v), o.value(o.mask))
	default:
		l.say("%s & %s %s%s", o.text, o.value(o.mask), cmp2(sign), o.value(v))
	}
	if o.kind == valueAddr && o.mask == nil && len(v) < o.full { // the first bytes of an address
		l.out[len(l.out)-1] += fmt.Sprintf("/%d", len(v)*8)
	}
	l.asked(&o, op, v)
}

// asked notes the header whose protocol a comparison has matched.
func (l *listing) asked(o *operand, op uint32, v []byte) {
	if o.asks == nil || o.mask != nil || op != CmpEq || len(v) != 1 {
		return
	}
	o.asks.asked = len(l.out)
	if o.asks == &l.transport {
		o.asks.protocol = servicemodel.Protocol(v[0])
		return
	}
	for _, f := range Families {
		if f.NFProto == v[0] {
			o.asks.family = f
		}
	}
}

// cmp2 returns the sign of a comparison after a mask. Unlike other comparisons, equality then has a
// sign, too.
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
		l.load(f.u32(AttrImmediateDReg), operand{text: (&operand{}).value(data[DataValue]),
			raw: data[DataValue]})
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

// extension writes a match or target of x_tables, or the comment of xt_comment.
func (l *listing) extension(kind string, f fields) {
	name := f.text(AttrExtensionName)
	switch {
	case kind == "target":
		l.say("-j %s", name)
	case name == "comment":
		l.say("/* %s */", f.text(AttrExtensionInfo))
	default:
		l.say("%s", portMatch(name, f[AttrExtensionInfo]))
	}
}

// portMatch writes an extension: as nft would if it matches one destination port. The information
// begins with the first and the last source port, and then the first and the last destination port
// (xt_tcpudp.h). xt_sctp.h has the destination first.
func portMatch(name string, info []byte) string {
	at := 4
	switch name {
	case "tcp", "udp":
	case "sctp":
		at = 0
	default:
		return "-m " + name
	}
	if len(info) < at+4 || !bytes.Equal(info[at:at+2], info[at+2:at+4]) {
		return "-m " + name
	}
	return fmt.Sprintf("%s dport %d", name, binary.NativeEndian.Uint16(info[at:]))
}
