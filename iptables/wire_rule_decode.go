package iptables

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// loaded is what a register holds.
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

// decoder reads the rules of one family. What it does not understand makes a rule opaque.
type decoder struct {
	f      *nft.Family
	r      rule
	reg    loaded
	chains map[string]string // one string for each name of a chain
	a      attrs
}

func newDecoder(f *nft.Family) *decoder { return &decoder{f: f, chains: map[string]string{}} }

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

// leadsTo returns the chain that a rule jumps or goes to, whatever else is in it.
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

// consistent reports what no single expression can tell: ports need their protocol.
func (d *decoder) consistent() bool { return d.r.ports.any() || d.r.proto.Valid() }

func (d *decoder) expr(e nft.ExprInfo) bool {
	if d.r.target != targetNone || !d.a.parse(e.Attrs) {
		return false // nothing comes after the target
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
		return d.match(d.extension(), d.a[nft.AttrExtensionInfo])
	case "target":
		return d.target(d.extension(), d.a[nft.AttrExtensionInfo])
	}
	return false
}

// extension returns the match or target of x_tables that the attributes name.
func (d *decoder) extension() extension {
	return extension{cString(d.a[nft.AttrExtensionName]), d.a.u32(nft.AttrExtensionRev)}
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

// isProtocol reports whether what was loaded is the protocol, which only the header of IPv4 has at
// a fixed place.
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

// address reads a comparison with the source or destination address, all of it, its leading bytes
// or leading bits.
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

// maskBits returns the number of leading ones of a mask, and false if ones follow zeros.
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
	if d.a.u32(nft.AttrImmediateDReg) != nft.RegVerdict { // nothing else ends a rule
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

// chainName returns always the same string for the same name.
func (d *decoder) chainName(b []byte) string {
	if s, ok := d.chains[string(b)]; ok {
		return s
	}
	s := string(b)
	if d.chains != nil {
		d.chains[s] = s
	}
	return s
}

func (d *decoder) match(x extension, info []byte) bool {
	switch x {
	case xtAddrtype:
		return decodeAddrtype(info, &d.r)
	case xtConntrack:
		return decodeConntrack(info, &d.r)
	case xtStatistic:
		return decodeStatistic(info, &d.r)
	case xtRecent:
		return decodeRecent(info, d.f, &d.r)
	case xtSCTP:
		return d.r.proto == servicemodel.SCTP && decodeSCTP(info, &d.r)
	case xtTCP:
		return d.r.proto == servicemodel.TCP && decodePorts(info, &d.r)
	case xtUDP:
		return d.r.proto == servicemodel.UDP && decodePorts(info, &d.r)
	case xtComment:
		return decodeComment(info, &d.r)
	case xtMark:
		return decodeMark(info, &d.r)
	}
	return false
}

func (d *decoder) target(x extension, info []byte) bool {
	switch x {
	case xtDNAT:
		return decodeDNAT(info, d.f, &d.r)
	case xtMasquerade:
		return decodeMasquerade(info, d.f, &d.r)
	case xtMARK:
		return decodeMARK(info, &d.r)
	case xtREJECT:
		return decodeREJECT(info, d.f, &d.r)
	}
	return false
}

// attrs are the attributes of an expression by their type. Those of types above 7 are passed over:
// no expression here needs them.
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

// u32 returns an attribute that is a number; a wrong length reads as a number that means nothing.
func (a *attrs) u32(t int) uint32 {
	if len(a[t]) != 4 {
		return 1<<32 - 1
	}
	return binary.BigEndian.Uint32(a[t])
}

// value returns the value in an attribute that has one for a register; nil if there is none.
func (a *attrs) value(t int) []byte {
	var d attrs
	if !d.parse(a[t]) {
		return nil
	}
	return d[nft.DataValue]
}

// cString returns the bytes up to the first NUL as a string.
func cString(b []byte) string { return string(nft.CString(b)) }
