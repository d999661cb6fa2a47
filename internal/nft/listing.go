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
// and other expressions by their names. Extensions of x_tables are written as "-m name" and "-j
// NAME". nft cannot load the result. family is the family of the rule's table.
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
	// this match superfluous, because the field's name contains the protocol.
	asked int
}

// implied removes the match of the protocol, because a field of the header follows.
func (l *listing) implied(h *header) {
	if h.asked > 0 {
		l.out[h.asked-1] = ""
	}
	h.asked = 0
}

func (l *listing) say(format string, args ...any) {
	l.out = append(l.out, fmt.Sprintf(format, args...))
}

// load puts a value into a register, and replaces its old value.
func (l *listing) load(reg uint32, o operand) {
	o.at = offsetOf(reg)
	l.drop(o.at)
	l.loaded = append(l.loaded, o)
}

func (l *listing) drop(at int) {
	l.loaded = slices.DeleteFunc(l.loaded, func(o operand) bool { return o.at == at })
}

// take returns the values in the registers from reg on, and removes all loaded values.
func (l *listing) take(reg uint32) operand {
	var first operand
	for _, o := range l.loaded {
		switch {
		case o.at < offsetOf(reg):
		case first.text == "":
			first = o
		default:
			first.text += " . " + o.text
		}
	}

	l.loaded = nil
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

func (f fields) u64(typ uint16) uint64 {
	if len(f[typ]) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(f[typ])
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

// named contains the expressions without fields that nft writes with a different name.
var named = map[string]string{"masq": "masquerade", "redir": "redirect",
	"flow_offload": "flow add"}

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
	switch name {
	case "reject":
		l.say("reject")
		if f.u32(attrRejectType) == rejectTCPReset {
			l.say("with tcp reset")
		}
	case "nat":
		l.nat(f)
	case "limit":
		l.limit(f)
	case "log":
		l.say("log")
		if prefix := f.text(attrLogPrefix); prefix != "" {
			l.say("prefix %q", prefix)
		}
	case "dynset":
		l.say("update @%s { %s }", f.text(attrDynsetSet), l.take(f.u32(attrDynsetKeyReg)).text)
	default:
		if text := named[name]; text != "" {
			name = text
		}
		l.say("%s", name)
	}
}

// nat writes a translation. In tables of the family inet, nft also writes the family.
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
	if reg := f.u32(attrNATRegProtoMin); reg != 0 {
		for _, o := range l.loaded {
			if o.at == offsetOf(reg) && o.raw != nil {
				port = ":" + (&operand{kind: valuePort}).value(o.raw[:min(2, len(o.raw))])
			}
		}

		if port != "" {
			l.drop(offsetOf(reg))
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
	if f.u32(attrNATFlags)&natFullyRandom != 0 {
		l.say("fully-random")
	}
}

// limitUnits are the units of limits, by their number of seconds.
var limitUnits = map[uint64]string{1: "second", 60: "minute", 3600: "hour", 86400: "day",
	604800: "week"}

func (l *listing) limit(f fields) {
	over, bytes, what, common := "", "", "packets", uint32(5)
	if f.u32(attrLimitFlags)&limitInvert != 0 {
		over = "over "
	}
	if f.u32(attrLimitType) != 0 { // NFT_LIMIT_PKT_BYTES
		bytes, what, common = " bytes", "bytes", 0
	}
	l.say("limit rate %s%d%s/%s", over, f.u64(attrLimitRate), bytes,
		limitUnits[f.u64(attrLimitUnit)])
	if burst := f.u32(attrLimitBurst); burst != 0 && burst != common { // other than the default
		l.say("burst %d %s", burst, what)
	}
}

// bitwise changes a loaded value. If the operation is an and, the mask is kept for the next
// comparison.
func (l *listing) bitwise(f fields) {
	o := l.take(f.u32(AttrBitwiseSReg))
	mask, xor := f.value(AttrBitwiseMask), f.value(AttrBitwiseXor)
	o.mask = mask
	if slices.ContainsFunc(xor, func(b byte) bool { return b != 0 }) {
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
	if low := l.lower; low.out > 0 && op == CmpLte && offsetOf(reg) == low.at {
		l.out[low.out-1] = fmt.Sprintf("%s %s-%s", low.operand.text, low.text, low.value(v))
		l.lower.out = 0
		return
	}

	o := l.take(reg)
	l.lower.out = 0
	if op == CmpGte {
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
		if sign == "" { // after a mask, equality has a sign, too
			sign = "== "
		}
		l.say("%s & %s %s%s", o.text, o.value(o.mask), sign, o.value(v))
	}

	if o.kind == valueAddr && o.mask == nil && len(v) < o.full { // the first bytes of an address
		l.out[len(l.out)-1] += fmt.Sprintf("/%d", len(v)*8)
	}
	l.asked(&o, op, v)
}

// asked records the header whose protocol a comparison has matched.
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

func (l *listing) lookup(f fields) {
	o, set := l.take(f.u32(attrLookupSReg)), "@"+f.text(attrLookupSet)
	switch dreg := f[attrLookupDReg]; {
	case len(dreg) != 4 && f.u32(attrLookupFlags)&lookupInvert != 0:
		l.say("%s != %s", o.text, set)
	case len(dreg) != 4:
		l.say("%s %s", o.text, set)
	case f.u32(attrLookupDReg) == RegVerdict:
		l.say("%s map %s", o.text, set)
	default:
		l.load(f.u32(attrLookupDReg), operand{text: o.text + " map " + set})
	}
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
	case name == "conntrack":
		l.say("%s", stateMatch(f.u32(AttrExtensionRev), f[AttrExtensionInfo]))
	default:
		l.say("%s", portMatch(name, f[AttrExtensionInfo]))
	}
}

// stateMatch writes xt_conntrack. It writes a match of only the state of the connection as nft
// does. The sixteen addresses and eleven numbers before the state are for other matches (struct
// xt_conntrack_mtinfo3, include/uapi/linux/netfilter/xt_conntrack.h). nft has the same bits for the
// first four states.
func stateMatch(revision uint32, info []byte) string {
	const flags, inverted, states, onlyState, common = 146, 148, 150, 1, 0xf
	if revision != 3 || len(info) < states+2 ||
		binary.NativeEndian.Uint16(info[states:])&^common != 0 ||
		binary.NativeEndian.Uint16(info[flags:]) != onlyState ||
		binary.NativeEndian.Uint16(info[inverted:]) != 0 {
		return "-m conntrack"
	}

	var l []string
	for bit, name := range bitNames[valueCTState] {
		if binary.NativeEndian.Uint16(info[states:])&common&(1<<bit) != 0 {
			l = append(l, name)
		}
	}

	return "ct state " + strings.Join(l, ",")
}

// portMatch writes an extension. It writes a match of one destination port as nft does. The struct
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
