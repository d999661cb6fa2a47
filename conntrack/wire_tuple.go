package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// appendTuple appends t as the attribute typ, CTA_TUPLE_ORIG or CTA_TUPLE_REPLY. A zone of both
// directions is a separate attribute, see appendZone.
func appendTuple(b *rawnl.Batch, typ uint16, p Protocol, t Tuple, zone bool) {
	tuple := b.Nest(typ)
	ip := b.Nest(attrTupleIP)
	appendAddrs(b, t.Src.Addr(), t.Dst.Addr())
	b.End(ip)
	proto := b.Nest(attrTupleProto)
	b.U8(attrProtoNum, uint8(p))
	switch p {
	case protoICMP:
		b.U16(attrICMPID, t.Src.Port())
		b.U8(attrICMPType, t.ICMPType)
		b.U8(attrICMPCode, t.ICMPCode)
	case protoICMPv6:
		b.U16(attrICMPv6ID, t.Src.Port())
		b.U8(attrICMPv6Type, t.ICMPType)
		b.U8(attrICMPv6Code, t.ICMPCode)
	default:
		b.U16(attrProtoSrcPort, t.Src.Port())
		b.U16(attrProtoDstPort, t.Dst.Port())
	}

	b.End(proto)
	if zone {
		b.U16(attrTupleZone, t.Zone)
	}
	b.End(tuple)
}

// appendAddrs appends the addresses that are valid.
func appendAddrs(b *rawnl.Batch, src, dst netip.Addr) {
	appendAddr(b, src, attrIPv4Src, attrIPv6Src)
	appendAddr(b, dst, attrIPv4Dst, attrIPv6Dst)
}

// appendAddr appends an address, unless it is invalid, as the attribute of its family.
func appendAddr(b *rawnl.Batch, a netip.Addr, v4, v6 uint16) {
	switch {
	case a.Is4():
		v := a.As4()
		b.Attr(v4, v[:])
	case a.Is6():
		v := a.As16()
		b.Attr(v6, v[:])
	}
}

func parseTuple(it rawnl.AttrIter) (t Tuple, p Protocol, err error) {
	var src, dst netip.Addr
	var sport, dport uint16
	for it.Next() {
		switch it.Type() {
		case attrTupleIP:
			src, dst, err = parseAddrs(it.Nest())
		case attrTupleProto:
			p, sport, dport, err = parsePorts(it.Nest(), &t)
		case attrTupleZone:
			t.Zone = it.U16()
		}

		if err != nil {
			return t, p, err
		}
	}

	if err := it.Err(); err != nil {
		return t, p, err
	}
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return t, p, fmt.Errorf("%w: a tuple from %s to %s", rawnl.ErrMalformed, src, dst)
	}
	t.Src, t.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t, p, nil
}

// parseAddrs parses CTA_TUPLE_IP. An address of a wrong length is left out.
func parseAddrs(it rawnl.AttrIter) (src, dst netip.Addr, err error) {
	for it.Next() {
		addr, _ := netip.AddrFromSlice(it.Data())
		switch typ := it.Type(); {
		case typ == attrIPv4Src && addr.Is4(), typ == attrIPv6Src && addr.Is6():
			src = addr
		case typ == attrIPv4Dst && addr.Is4(), typ == attrIPv6Dst && addr.Is6():
			dst = addr
		}
	}

	return src, dst, it.Err()
}

func parsePorts(it rawnl.AttrIter, t *Tuple) (p Protocol, sport, dport uint16, err error) {
	for it.Next() {
		switch it.Type() {
		case attrProtoNum:
			p = Protocol(it.U8())
		case attrProtoSrcPort:
			sport = it.U16()
		case attrProtoDstPort:
			dport = it.U16()
		case attrICMPID, attrICMPv6ID:
			sport = it.U16()
			dport = sport
		case attrICMPType, attrICMPv6Type:
			t.ICMPType = it.U8()
		case attrICMPCode, attrICMPv6Code:
			t.ICMPCode = it.U8()
		}
	}

	return p, sport, dport, it.Err()
}
