package iptables

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

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
	f      *family
	r      rule
	reg    loaded
	chains map[string]string // one string for each name of a chain
	a      attrs
}

func newDecoder(f *family) *decoder { return &decoder{f: f, chains: map[string]string{}} }

// decodeRule reads the expressions and user data of a rule.
func (d *decoder) decodeRule(exprs, udata []byte) rule {
	d.r, d.reg = rule{}, loaded{}
	ok := parseExprs(exprs, d.expr)
	if c, there := commentOf(udata); ok && there {
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
	parseExprs(exprs, func(e expr) bool {
		if e.name == "immediate" && d.a.parse(e.data) {
			d.immediate()
		}
		return true
	})
	return d.r.chain
}

// consistent reports what no single expression can tell: ports need their protocol.
func (d *decoder) consistent() bool { return d.r.ports.any() || d.r.proto.Valid() }

// commentOf returns the comment in a rule's user data (struct nftnl_udata: u8 type, u8 length, then
// the value).
func commentOf(ud []byte) (string, bool) {
	for len(ud) >= 2 {
		typ, n := ud[0], int(ud[1])
		if len(ud) < 2+n {
			return "", false
		}
		if typ == udataComment && n > 0 {
			return cString(ud[2 : 2+n]), true
		}
		ud = ud[2+n:]
	}
	return "", false
}

func (d *decoder) expr(e expr) bool {
	if d.r.target != targetNone || !d.a.parse(e.data) {
		return false // nothing comes after the target
	}
	switch e.name {
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
		return d.match(extension{cString(d.a[1]), d.a.u32(2)}, d.a[3])
	case "target":
		return d.target(extension{cString(d.a[1]), d.a.u32(2)}, d.a[3])
	}
	return false
}

func (d *decoder) payload() bool {
	d.reg = loaded{offset: d.a.u32(3), size: d.a.u32(4)}
	switch d.a.u32(2) {
	case baseNetwork:
		d.reg.what = loadedNetwork
	case baseTransport:
		d.reg.what = loadedTransport
	}
	return d.reg.what != loadedNothing && d.a.u32(1) == reg1
}

func (d *decoder) meta() bool {
	d.reg = loaded{}
	switch d.a.u32(2) {
	case metaMark:
		d.reg.what = loadedMark
	case metaIIFName:
		d.reg.what = loadedInterface
	case metaL4Proto:
		d.reg.what = loadedProtocol
	}
	return d.reg.what != loadedNothing && d.a.u32(1) == reg1
}

func (d *decoder) bitwise() bool {
	d.reg.mask = d.a.value(4)
	for _, x := range d.a.value(5) {
		if x != 0 {
			return false
		}
	}
	return d.reg.mask != nil && d.a.u32(1) == reg1 && d.a.u32(2) == reg1
}

func (d *decoder) cmp() bool {
	op, v := d.a.u32(2), d.a.value(3)
	if d.a.u32(1) != reg1 {
		return false
	}
	if d.reg.what == loadedTransport && op != cmpNeq {
		return d.comparePort(op, v)
	}
	if op != cmpEq && op != cmpNeq {
		return false
	}
	not := op == cmpNeq
	switch d.reg.what {
	case loadedNetwork:
		if d.f.model == servicemodel.IPv4 && d.reg.offset == protocolOffset && d.reg.size == 1 &&
			d.reg.mask == nil {
			return d.protocol(v, not)
		}
		return d.address(v, not)
	case loadedMark:
		if d.r.mark.mask != 0 || len(v) != 4 {
			return false
		}
		d.r.mark = markMatch{value: native.Uint32(v), mask: 1<<32 - 1, not: not}
		if len(d.reg.mask) == 4 {
			d.r.mark.mask = native.Uint32(d.reg.mask)
		}
		return d.r.mark.mask != 0
	case loadedInterface:
		return d.interfaceName(v, not)
	case loadedProtocol:
		return d.protocol(v, not)
	}
	return false
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
	case cmpEq:
		return d.r.setPorts(port, port)
	case cmpLte:
		return d.r.setPorts(0, port)
	case cmpGte:
		return d.r.setPorts(port, 0xffff)
	}
	return false
}

func (d *decoder) rangeOf() bool {
	from, to := d.a.value(3), d.a.value(4)
	if d.reg.what != loadedTransport || d.reg.offset != 2 || d.reg.size != 2 || len(from) != 2 ||
		len(to) != 2 {
		return false
	}
	if d.a.u32(1) != reg1 || d.a.u32(2) != rangeEq || d.reg.mask != nil {
		return false
	}
	return d.r.setPorts(binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to))
}

// address reads a comparison with the source or destination address, all of it, its leading bytes
// or leading bits.
func (d *decoder) address(v []byte, not bool) bool {
	n := addrLen(d.f.model)
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
	case d.reg.offset == d.f.dstOffset && !d.r.dst.IsValid():
		d.r.dst, d.r.notDst = p, not
		return true
	case d.reg.offset == d.f.srcOffset && !d.r.src.IsValid():
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
	if d.a.u32(1) != 0 { // only NFT_REG_VERDICT ends a rule
		return false
	}
	var v attrs
	if !v.parse(d.a[2]) || !v.parse(v[dataVerdict]) {
		return false
	}
	chain := ""
	if len(v[2]) > 0 {
		chain = d.chainName(v[2])
	}
	switch int32(v.u32(1)) {
	case verdictAccept:
		d.r.target = targetAccept
	case verdictDrop:
		d.r.target = targetDrop
	case verdictReturn:
		d.r.target = targetReturn
	case verdictJump:
		d.r.target, d.r.chain = targetJump, chain
	case verdictGoto:
		d.r.target, d.r.chain = targetGoto, chain
	}
	jumps := d.r.target == targetJump || d.r.target == targetGoto
	return d.r.target != targetNone && (chain != "") == jumps
}

// chainName returns the name in an attribute, always the same string for the same name.
func (d *decoder) chainName(b []byte) string {
	if n := len(b); b[n-1] == 0 {
		b = b[:n-1]
	}
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
		return decodeRecent(info, d.f.model, &d.r)
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
		return decodeDNAT(info, d.f.model, &d.r)
	case xtMasquerade:
		return decodeMasquerade(info, d.f.model, &d.r)
	case xtMARK:
		return decodeMARK(info, &d.r)
	case xtREJECT:
		return decodeREJECT(info, d.f.model, &d.r)
	}
	return false
}
