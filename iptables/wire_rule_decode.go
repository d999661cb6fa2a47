package iptables

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// loaded is the content of a register: a part of a header of the packet, or metadata.
type loaded struct {
	base, offset, size uint32 // of nft_payload
	meta               uint32 // the key of nft_meta
	mask               []byte
}

// decoder reads the rules of one family. If it does not know an expression, the rule is opaque.
type decoder struct {
	f      *nft.Family
	r      rule
	reg    loaded
	chains map[string]string // one string for each name of a chain
	limit  int               // the number of names that are kept
	a      attrs

	scratch [sizeLargest]byte
}

// foundRule is a rule as the kernel returns it.
type foundRule struct {
	chain  string
	handle uint64
	rule   rule
}

func (d *decoder) decodeRuleMessage(attrs []byte) (foundRule, error) {
	info, err := nft.DecodeRule(attrs)
	if err != nil {
		return foundRule{}, err
	}
	r := foundRule{handle: info.Handle, rule: d.decodeRule(info.Exprs, info.UserData)}
	if len(info.Chain) > 0 {
		r.chain = d.chainName(info.Chain)
	}
	return r, nil
}

func newDecoder(f *nft.Family) *decoder {
	d := &decoder{f: f, chains: map[string]string{}}
	d.limitNames(0)
	return d
}

// limitNames sets the limit at four times the number of chains. Above it the decoder forgets all
// names, because most of them then belong to services that are gone.
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

	// No single expression can verify that a match of ports comes with a match of the protocol.
	if ok && (d.r.ports.any() || d.r.proto.Valid()) {
		return d.r
	}
	d.r = rule{}
	nft.EachExpr(exprs, func(e nft.ExprInfo) bool { // its jump counts even if the rest is opaque
		if string(e.Name) == "immediate" && d.a.parse(e.Attrs) {
			d.immediate()
		}
		return true
	})

	return rule{opaque: true, chain: d.r.chain}
}

func (d *decoder) expr(e nft.ExprInfo) bool {
	if d.r.target != targetNone || !d.a.parse(e.Attrs) {
		return false // no expression may follow the target
	}
	switch string(e.Name) {
	case "counter":
		return true
	case "payload":
		d.reg = loaded{base: d.a.u32(nft.AttrPayloadBase), offset: d.a.u32(nft.AttrPayloadOffset),
			size: d.a.u32(nft.AttrPayloadLen)}
		return d.a.u32(nft.AttrPayloadDReg) == nft.Reg1
	case "meta":
		d.reg = loaded{meta: d.a.u32(nft.AttrMetaKey)}
		return d.a.u32(nft.AttrMetaDReg) == nft.Reg1
	case "bitwise":
		xor := bytes.Trim(d.a.value(nft.AttrBitwiseXor), "\x00")
		d.reg.mask = d.a.value(nft.AttrBitwiseMask)
		return d.reg.mask != nil && len(xor) == 0 &&
			d.a.u32(nft.AttrBitwiseSReg) == nft.Reg1 && d.a.u32(nft.AttrBitwiseDReg) == nft.Reg1
	case "cmp":
		return d.a.u32(nft.AttrCmpSReg) == nft.Reg1 && d.cmp()
	case "range":
		return d.portRange()
	case "immediate":
		return d.immediate()
	case "match":
		return d.extension(false)
	case "target":
		return d.extension(true)
	}

	return false
}

// isPort reports whether the loaded value is the destination port. isProtocol reports whether it is
// the protocol: only the IPv4 header has the protocol at a fixed offset.
func (l *loaded) isPort() bool {
	return l.base == nft.TransportHeader && l.offset == 2 && l.size == 2 && l.mask == nil
}

func (l *loaded) isProtocol(f *nft.Family) bool {
	return l.mask == nil && (l.meta == nft.MetaL4Proto || f == nft.IPv4 &&
		l.base == nft.NetworkHeader && l.offset == protocolOffset && l.size == 1)
}

// portRange reads a range of destination ports.
func (d *decoder) portRange() bool {
	from, to := d.a.value(nft.AttrRangeFrom), d.a.value(nft.AttrRangeTo)
	return d.a.u32(nft.AttrRangeSReg) == nft.Reg1 && d.a.u32(nft.AttrRangeOp) == nft.RangeEq &&
		d.reg.isPort() && len(from) == 2 && len(to) == 2 &&
		d.r.setPorts(binary.BigEndian.Uint16(from), binary.BigEndian.Uint16(to))
}

// port reads a comparison with the destination port.
func (d *decoder) port(op uint32, port uint16) bool {
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

// cmp reads a comparison of the loaded value.
func (d *decoder) cmp() bool {
	op, v, r := d.a.u32(nft.AttrCmpOp), d.a.value(nft.AttrCmpData), &d.r
	not := op == nft.CmpNeq
	switch {
	case d.reg.isPort():
		return len(v) == 2 && d.port(op, binary.BigEndian.Uint16(v))
	case op != nft.CmpEq && !not:
		return false
	case d.reg.isProtocol(d.f):
		if len(v) != 1 || not || r.proto != 0 {
			return false
		}
		r.proto = servicemodel.Protocol(v[0])
		return true
	case d.reg.base == nft.NetworkHeader:
		return d.address(v, not)
	case d.reg.meta == nft.MetaMark && r.mark.mask == 0 && len(v) == 4:
		r.mark = markMatch{value: native.Uint32(v), mask: 1<<32 - 1, not: not}
		if len(d.reg.mask) == 4 {
			r.mark.mask = native.Uint32(d.reg.mask)
		}
		return r.mark.mask != 0
	case d.reg.meta == nft.MetaIIFName && r.in == "" && d.reg.mask == nil &&
		0 < len(v) && len(v) <= ifNameSize:
		r.in, r.notIn = cString(v), not
		if v[len(v)-1] != 0 {
			r.in += "+"
		}
		return r.in != ""
	}

	return false
}

const ifNameSize = 16 // IFNAMSIZ

// address reads a comparison with the source or destination address: with the whole address, its
// leading bytes or its leading bits.
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
	for t := targetAccept; t <= targetGoto; t++ {
		if verdicts[t].code == int32(v.u32(nft.AttrVerdictCode)) {
			d.r.target, d.r.chain = t, chain
		}
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

// u32 returns an attribute as a number. If the length is wrong, the number is meaningless.
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
