package iptables

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// loaded is the content of a register.
type loaded struct {
	what         loadedKind
	offset, size uint32
	mask         []byte
}

type loadedKind uint8

const (
	loadedNothing loadedKind = iota
	loadedNetwork
	loadedTransport
	loadedMark
	loadedInterface
	loadedProtocol
)

// decoder reads the rules of one family. If it does not know an expression, the rule is opaque.
type decoder struct {
	f      *nft.Family
	r      rule
	reg    loaded
	chains map[string]string // one string for each name of a chain
	limit  int               // how many names are kept
	a      attrs
}

func newDecoder(f *nft.Family) *decoder {
	d := &decoder{f: f, chains: map[string]string{}}
	d.limitNames(0)
	return d
}

// limitNames makes the decoder forget all names when it knows four times as many as there are
// chains, because most of them then belong to services that are gone.
func (d *decoder) limitNames(chains int) { d.limit = max(minNames, 4*chains) }

const minNames = 256

// decodeRule reads the expressions and user data of a rule.
func (d *decoder) decodeRule(exprs, udata []byte) rule {
	d.r, d.reg = rule{}, loaded{}
	ok := nft.EachExpr(exprs, d.expr)
	if c := nft.CommentOf(udata); ok && c != "" {
		ok = d.r.comment == ""
		d.r.comment = c
	}
	if !ok || !d.consistent() {
		return rule{opaque: true, chain: d.leadsTo(exprs)}
	}
	return d.r
}

// leadsTo returns the chain to which a rule jumps or goes, whatever else the rule contains.
func (d *decoder) leadsTo(exprs []byte) string {
	d.r = rule{}
	nft.EachExpr(exprs, func(e nft.ExprInfo) bool {
		if string(e.Name) == "immediate" && d.a.parse(e.Attrs) {
			d.immediate()
		}
		return true
	})
	return d.r.chain
}

// consistent checks what no single expression can tell: a match of ports needs a match of the
// protocol.
func (d *decoder) consistent() bool { return d.r.ports.any() || d.r.proto.Valid() }

func (d *decoder) expr(e nft.ExprInfo) bool {
	if d.r.target != targetNone || !d.a.parse(e.Attrs) {
		return false // no expression may follow the target
	}
	switch string(e.Name) {
	case "counter":
		return true
	case "payload":
		return d.payload()
	case "meta":
		return d.meta()
	case "bitwise":
		return d.bitwise()
	case "cmp":
		return d.cmp()
	case "range":
		return d.rangeOf()
	case "immediate":
		return d.immediate()
	case "match":
		return d.extension(matches)
	case "target":
		return d.extension(targets)
	}
	return false
}

// extension reads the match or target of x_tables that the attributes name.
func (d *decoder) extension(known map[nft.Extension]decodeInfo) bool {
	decode := known[nft.Extension{Name: cString(d.a[nft.AttrExtensionName]),
		Revision: d.a.u32(nft.AttrExtensionRev)}]
	return decode != nil && decode(d.a[nft.AttrExtensionInfo], d.f, &d.r)
}

func (d *decoder) payload() bool {
	d.reg = loaded{offset: d.a.u32(nft.AttrPayloadOffset), size: d.a.u32(nft.AttrPayloadLen)}
	switch d.a.u32(nft.AttrPayloadBase) {
	case nft.NetworkHeader:
		d.reg.what = loadedNetwork
	case nft.TransportHeader:
		d.reg.what = loadedTransport
	}
	return d.reg.what != loadedNothing && d.a.u32(nft.AttrPayloadDReg) == nft.Reg1
}

func (d *decoder) meta() bool {
	d.reg = loaded{}
	switch d.a.u32(nft.AttrMetaKey) {
	case nft.MetaMark:
		d.reg.what = loadedMark
	case nft.MetaIIFName:
		d.reg.what = loadedInterface
	case nft.MetaL4Proto:
		d.reg.what = loadedProtocol
	}
	return d.reg.what != loadedNothing && d.a.u32(nft.AttrMetaDReg) == nft.Reg1
}

func (d *decoder) bitwise() bool {
	d.reg.mask = d.a.value(nft.AttrBitwiseMask)
	for _, x := range d.a.value(nft.AttrBitwiseXor) {
		if x != 0 {
			return false
		}
	}
	return d.reg.mask != nil && d.a.u32(nft.AttrBitwiseSReg) == nft.Reg1 &&
		d.a.u32(nft.AttrBitwiseDReg) == nft.Reg1
}

func (d *decoder) cmp() bool {
	op, v := d.a.u32(nft.AttrCmpOp), d.a.value(nft.AttrCmpData)
	if d.a.u32(nft.AttrCmpSReg) != nft.Reg1 {
		return false
	}
	if d.reg.what == loadedTransport {
		return d.comparePort(op, v)
	}
	if op != nft.CmpEq && op != nft.CmpNeq {
		return false
	}
	not := op == nft.CmpNeq
	switch d.reg.what {
	case loadedNetwork:
		if d.reg.isProtocol(d.f) {
			return d.protocol(v, not)
		}
		return d.address(v, not)
	case loadedMark:
		return d.mark(v, not)
	case loadedInterface:
		return d.interfaceName(v, not)
	case loadedProtocol:
		return d.protocol(v, not)
	}
	return false
}

// isProtocol reports whether the loaded value is the protocol. Only the IPv4 header has it at a
// fixed place.
func (l *loaded) isProtocol(f *nft.Family) bool {
	return f == nft.IPv4 && l.offset == protocolOffset && l.size == 1 && l.mask == nil
}

// mark reads a comparison with the packet mark.
func (d *decoder) mark(v []byte, not bool) bool {
	if d.r.mark.mask != 0 || len(v) != 4 {
		return false
	}
	d.r.mark = markMatch{value: native.Uint32(v), mask: 1<<32 - 1, not: not}
	if len(d.reg.mask) == 4 {
		d.r.mark.mask = native.Uint32(d.reg.mask)
	}
	return d.r.mark.mask != 0
}

func (d *decoder) protocol(v []byte, not bool) bool {
	if len(v) != 1 || not || d.r.proto != 0 {
		return false
	}
	d.r.proto = servicemodel.Protocol(v[0])
	return true
}

// comparePort reads a comparison with the destination port.
func (d *decoder) comparePort(op uint32, v []byte) bool {
	if d.reg.offset != 2 || d.reg.size != 2 || len(v) != 2 || d.reg.mask != nil {
		return false
	}
	port := binary.BigEndian.Uint16(v)
	switch op {
	case nft.CmpEq:
		return d.r.setPorts(port, port)
	case nft.CmpLte:
		return d.r.setPorts(0, port)
	case nft.CmpGte:
		return d.r.setPorts(port, 0xffff)
	}
	return false
}

func (d *decoder) rangeOf() bool {
	from, to := d.a.value(nft.AttrRangeFrom), d.a.value(nft.AttrRangeTo)
	if d.reg.what != loadedTransport || d.reg.offset != 2 || d.reg.size != 2 || len(from) != 2 ||
		len(to) != 2 {
		return false
	}
	if d.a.u32(nft.AttrRangeSReg) != nft.Reg1 || d.a.u32(nft.AttrRangeOp) != nft.RangeEq ||
		d.reg.mask != nil {
		return false
	}
	return d.r.setPorts(binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to))
}

// address reads a comparison with the source or destination address: with all of it, its leading
// bytes or its leading bits.
func (d *decoder) address(v []byte, not bool) bool {
	n := d.f.AddrLen
	size := int(d.reg.size)
	if size > n || len(v) != size {
		return false
	}
	length := size * 8
	if d.reg.mask != nil {
		var ok bool
		if length, ok = maskBits(d.reg.mask); !ok || len(d.reg.mask) != size {
			return false
		}
	}
	var full [16]byte
	copy(full[:], v)
	addr, _ := netip.AddrFromSlice(full[:n])
	p := netip.PrefixFrom(addr, length)
	switch {
	case p.Masked() != p:
		return false
	case d.reg.offset == d.f.DaddrOffset && !d.r.dst.IsValid():
		d.r.dst, d.r.notDst = p, not
		return true
	case d.reg.offset == d.f.SaddrOffset && !d.r.src.IsValid():
		d.r.src, d.r.notSrc = p, not
		return true
	}
	return false
}

// maskBits returns the number of leading ones of a mask. It returns false if ones follow zeros.
func maskBits(mask []byte) (int, bool) {
	n := 0
	for i, b := range mask {
		lead := bits.LeadingZeros8(^b)
		n += lead
		if lead == 8 {
			continue
		}
		rest := b << lead
		for _, c := range mask[i+1:] {
			rest |= c
		}
		return n, rest == 0
	}
	return n, true
}

func (d *decoder) interfaceName(v []byte, not bool) bool {
	if d.r.in != "" || len(v) == 0 || len(v) > ifNameSize || d.reg.mask != nil {
		return false
	}
	d.r.in, d.r.notIn = cString(v), not
	if v[len(v)-1] != 0 {
		d.r.in += "+"
	}
	return d.r.in != ""
}

const ifNameSize = 16 // IFNAMSIZ

func (d *decoder) immediate() bool {
	if d.a.u32(nft.AttrImmediateDReg) != nft.RegVerdict { // no other expression ends a rule
		return false
	}
	var v attrs
	if !v.parse(d.a[nft.AttrImmediateData]) || !v.parse(v[nft.DataVerdict]) {
		return false
	}
	chain := ""
	if name := nft.CString(v[nft.AttrVerdictChain]); len(name) > 0 {
		chain = d.chainName(name)
	}
	switch int32(v.u32(nft.AttrVerdictCode)) {
	case nft.VerdictAccept:
		d.r.target = targetAccept
	case nft.VerdictDrop:
		d.r.target = targetDrop
	case nft.VerdictReturn:
		d.r.target = targetReturn
	case nft.VerdictJump:
		d.r.target, d.r.chain = targetJump, chain
	case nft.VerdictGoto:
		d.r.target, d.r.chain = targetGoto, chain
	}
	jumps := d.r.target == targetJump || d.r.target == targetGoto
	return d.r.target != targetNone && (chain != "") == jumps
}

// chainName returns the same string for the same name, without allocating it again.
func (d *decoder) chainName(b []byte) string {
	if s, ok := d.chains[string(b)]; ok {
		return s
	}
	if len(d.chains) >= d.limit {
		clear(d.chains)
	}
	s := string(b)
	d.chains[s] = s
	return s
}

// attrs are the attributes of an expression by their type. Types above 7 are ignored, because no
// expression here needs them.
type attrs [8][]byte

// parse reads the attributes in data.
func (a *attrs) parse(data []byte) bool {
	*a = attrs{}
	it := rawnl.Attrs(data)
	for it.Next() {
		if t := it.Type(); int(t) < len(a) {
			a[t] = it.Data()
		}
	}
	return it.Err() == nil
}

// u32 returns an attribute as a number. For a wrong length it returns a number without meaning.
func (a *attrs) u32(t int) uint32 {
	if len(a[t]) != 4 {
		return 1<<32 - 1
	}
	return binary.BigEndian.Uint32(a[t])
}

// value returns the register value in an attribute, or nil if there is none.
func (a *attrs) value(t int) []byte {
	var d attrs
	if !d.parse(a[t]) {
		return nil
	}
	return d[nft.DataValue]
}

// cString returns the bytes up to the first NUL as a string.
func cString(b []byte) string { return string(nft.CString(b)) }
