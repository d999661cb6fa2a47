package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Selector is the value that a rule matches: a field of a header, or a property of the packet or of
// its flow.
type Selector struct {
	text string
	len  int // bytes
	load func(b *rawnl.Batch, reg uint32)
}

// Selectors that are the same in both families; [Family] has the others.
var (
	L4Proto = Selector{"meta l4proto", protocolLen, func(b *rawnl.Batch, reg uint32) {
		AppendMeta(b, reg, MetaL4Proto)
	}}
	Mark = Selector{"meta mark", 4, func(b *rawnl.Batch, reg uint32) {
		AppendMeta(b, reg, MetaMark)
	}}
	DPort = Selector{"th dport", portLen, func(b *rawnl.Batch, reg uint32) {
		AppendPayload(b, reg, TransportHeader, dportOffset, portLen)
	}}
	CTOriginalProtocol = ctOriginal("protocol", protocolLen, ctProtocol)
	CTOriginalDPort    = ctOriginal("proto-dst", portLen, ctProtoDst)
	CTReplySPort       = ctReply("proto-src", portLen, ctProtoSrc)
)

// ctOriginal selects a property of the flow's original direction.
func ctOriginal(name string, length int, key uint32) Selector {
	return Selector{"ct original " + name, length, func(b *rawnl.Batch, reg uint32) {
		appendCTOf(b, reg, key, ctDirOriginal)
	}}
}

// ctReply selects a property of the flow's reply direction.
func ctReply(name string, length int, key uint32) Selector {
	return Selector{"ct reply " + name, length, func(b *rawnl.Batch, reg uint32) {
		appendCTOf(b, reg, key, ctDirReply)
	}}
}

// NumgenRandom draws a number below mod.
func NumgenRandom(mod int) Selector {
	return Selector{fmt.Sprintf("numgen random mod %d", mod), 4,
		func(b *rawnl.Batch, reg uint32) { appendNumgen(b, reg, uint32(mod), numgenRandom) }}
}

// NumgenInc counts the packets that reach the rule, modulo mod.
func NumgenInc(mod int) Selector {
	return Selector{fmt.Sprintf("numgen inc mod %d", mod), 4,
		func(b *rawnl.Batch, reg uint32) { appendNumgen(b, reg, uint32(mod), numgenInc) }}
}

// JHash hashes the selected values into a number below mod.
func JHash(of Concat, mod int, seed uint32) Selector {
	return Selector{fmt.Sprintf("jhash %s mod %d seed 0x%x", of.text(), mod, seed), 4,
		func(b *rawnl.Batch, reg uint32) {
			from := hashed
			if reg != Reg1 {
				from += offsetOf(reg) + 4 // the hash ends a key
			}
			end := of.load(b, from)
			appendJHash(b, reg, from, uint32(end-from), uint32(mod), seed)
		}}
}

// IsZero matches if the selected number is 0.
func (s Selector) IsZero() Rule { return s.is("0", Native32(0)) }

// Frontend selects the key of a frontend in the form of [AppendFrontend].
func (f *Family) Frontend(nodePort bool) Concat {
	if nodePort {
		return Concat{L4Proto, DPort}
	}
	return Concat{f.Daddr, L4Proto, DPort}
}

// In matches if the selected value is in a set.
func (s Selector) In(set string) Rule { return Concat{s}.In(set) }

// Concat is a concatenation of selectors: the key of a set or map, or data of a map.
type Concat []Selector

// With returns the concatenation with more selectors at its end.
func (c Concat) With(more ...Selector) Concat { return append(c[:len(c):len(c)], more...) }

func (c Concat) text() string {
	l := make([]string, len(c))
	for i := range c {
		l[i] = c[i].text
	}
	return strings.Join(l, " . ")
}

// load loads the selectors one after another, each at a multiple of four bytes, starting at offset.
// It returns the offset after them.
func (c Concat) load(b *rawnl.Batch, offset int) int {
	for i := range c {
		c[i].load(b, register(offset))
		offset += (c[i].len + 3) &^ 3
	}

	return offset
}

// In matches if the selected key is in a set.
func (c Concat) In(set string) Rule { return c.lookup(" @", set, false) }

// NotIn matches if the selected key is not in a set.
func (c Concat) NotIn(set string) Rule { return c.lookup(" != @", set, true) }

func (c Concat) lookup(sign, set string, inverted bool) Rule {
	return rule(c.text()+sign+set, func(b *rawnl.Batch) {
		c.load(b, 0)
		appendLookup(b, set, inverted)
	})
}

// VMap executes the verdict of the selected key in a map, if the map has the key.
func (c Concat) VMap(name string) Rule {
	return rule(c.text()+" vmap @"+name, func(b *rawnl.Batch) {
		c.load(b, 0)
		appendLookupMap(b, name, Reg1, RegVerdict)
	})
}

// Mapped is the data of a map for a key. If the map does not have the key, the rule does not match.
type Mapped struct {
	key Concat
	in  string
}

// Map looks up the selected key in a map.
func (c Concat) Map(name string) Mapped { return Mapped{c, name} }

func (m Mapped) text() string { return m.key.text() + " map @" + m.in }

// load loads the map's data for the key into Reg1.
func (m Mapped) load(b *rawnl.Batch) { m.loadAt(b, 0) }

// loadAt loads the map's data for the key into the register at an offset.
func (m Mapped) loadAt(b *rawnl.Batch, offset int) {
	m.key.load(b, offset)
	appendLookupMap(b, m.in, register(offset), register(offset))
}

// PortPrefix selects the leading bits of a selected port. As with [Family.Prefix], it must come
// first in a concatenation.
func PortPrefix(port Selector, bits uint8) Selector {
	if bits == 8*portLen {
		return port
	}
	mask := PrefixMask(int(bits))
	number := binary.BigEndian.Uint16(mask[:])
	return Selector{fmt.Sprintf("%s & %d", port.text, number), port.len,
		func(b *rawnl.Batch, reg uint32) {
			port.load(b, reg)
			appendBitwiseIn(b, reg, mask[:portLen], nil)
		}}
}

// address selects an address in the network header.
func address(text string, offset uint32, length int) Selector {
	return Selector{text, length, func(b *rawnl.Batch, reg uint32) {
		AppendPayload(b, reg, NetworkHeader, offset, uint32(length))
	}}
}

// Prefix selects the leading bits of a selected address, or the whole address if bits is 0. nft can
// list the result only as the first part of a concatenation.
func (f *Family) Prefix(address Selector, bits uint8) Selector {
	if bits == 0 {
		return address
	}
	mask := PrefixMask(int(bits))
	text, _ := netip.AddrFromSlice(mask[:f.AddrLen])
	return Selector{address.text + " & " + text.String(), address.len,
		func(b *rawnl.Batch, reg uint32) {
			address.load(b, reg)
			appendBitwiseIn(b, reg, mask[:f.AddrLen], nil)
		}}
}

// PrefixMask returns a mask whose leading bits are set.
func PrefixMask(bits int) (mask [16]byte) {
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// SaddrNotWithin matches if the source address is not in a prefix.
func (f *Family) SaddrNotWithin(p netip.Prefix) Rule {
	return f.within("saddr != ", f.SaddrOffset, CmpNeq, p)
}

// DaddrWithin matches if the destination address is in a prefix.
func (f *Family) DaddrWithin(p netip.Prefix) Rule {
	return f.within("daddr ", f.DaddrOffset, CmpEq, p)
}

// DaddrNotWithin matches if the destination address is not in a prefix.
func (f *Family) DaddrNotWithin(p netip.Prefix) Rule {
	return f.within("daddr != ", f.DaddrOffset, CmpNeq, p)
}

func (f *Family) within(text string, offset, op uint32, p netip.Prefix) Rule {
	text += strings.TrimSuffix(p.Masked().String(), fmt.Sprintf("/%d", f.AddrLen*8))
	return rule(f.Name+" "+text, func(b *rawnl.Batch) { AppendPrefix(b, offset, op, p) })
}

// AppendPrefix compares an address in the network header with a prefix. If the prefix ends at a
// byte, it loads only the bytes of the prefix, as nft and iptables do.
func AppendPrefix(b *rawnl.Batch, offset, op uint32, p netip.Prefix) {
	p = p.Masked()
	addr := p.Addr().As16()
	bytes := addr[16-p.Addr().BitLen()/8:]
	if bits := p.Bits(); bits > 0 && bits%8 == 0 {
		bytes = bytes[:bits/8]
	}
	AppendPayload(b, Reg1, NetworkHeader, offset, uint32(len(bytes)))
	if p.Bits() < len(bytes)*8 {
		mask := PrefixMask(p.Bits())
		AppendBitwise(b, mask[:len(bytes)], nil)
	}

	AppendCmp(b, op, bytes)
}

// NotFromPods matches packets that do not come from pods of this node. If pods cannot be
// recognized, it matches all packets.
func (f *Family) NotFromPods(d servicemodel.PodDetector) Rule {
	var r Rule
	for _, p := range f.Own(d.CIDRs) {
		r = append(r, f.SaddrNotWithin(p)...)
	}
	if d.Bridge != "" {
		r = append(r, IIFNameNot(d.Bridge)...)
	}
	if d.InterfacePrefix != "" {
		r = append(r, IIFNameNot(d.InterfacePrefix+"*")...)
	}
	return r
}

// Own returns the prefixes that belong to the family.
func (f *Family) Own(l []netip.Prefix) []netip.Prefix {
	var own []netip.Prefix
	for _, p := range l {
		if servicemodel.FamilyOf(p.Addr()) == f.Model {
			own = append(own, p)
		}
	}

	return own
}
