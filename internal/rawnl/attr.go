package rawnl

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Flags that may be or-ed to the type of an attribute (include/uapi/linux/netlink.h).
const (
	AttrNested       uint16 = 0x8000 // NLA_F_NESTED; [Batch.Nest] sets it
	AttrNetByteOrder uint16 = 0x4000 // NLA_F_NET_BYTEORDER; ipset wants it on numbers
)

// MaxAttr is the greatest length of one attribute, its 4-byte header included: nla_len has 16 bits.
const MaxAttr = 65535

const (
	attrHeaderLen        = 4 // struct nlattr
	attrTypeMask  uint16 = ^(AttrNested | AttrNetByteOrder)
)

// align rounds n up to a multiple of 4.
//
//	#define NLA_ALIGN(len) (((len) + NLA_ALIGNTO - 1) & ~(NLA_ALIGNTO - 1))
func align(n int) int { return (n + 3) &^ 3 }

// Mark names an attribute that was begun and is still open. It is valid until the batch is reset.
type Mark int

// attr appends the header of an attribute with n bytes of data. It returns the place for the data
// and its padding. If the attribute is too long, attr appends it empty and marks the batch as bad.
func (b *Batch) attr(typ uint16, n int) []byte {
	if n > MaxAttr-attrHeaderLen {
		b.fail("attribute %d would be %d bytes long, more than %d", typ&attrTypeMask,
			attrHeaderLen+n, MaxAttr)
		n = 0
	}
	p := b.extend(attrHeaderLen + align(n))
	native.PutUint16(p, uint16(attrHeaderLen+n))
	native.PutUint16(p[2:], typ)
	return p[attrHeaderLen:]
}

// Attr appends an attribute that holds data.
func (b *Batch) Attr(typ uint16, data []byte) {
	p := b.attr(typ, len(data))
	clear(p[copy(p, data):])
}

// Text appends s as a NUL-terminated string.
func (b *Batch) Text(typ uint16, s string) {
	p := b.attr(typ, len(s)+1)
	clear(p[copy(p, s):])
}

// U8 appends one byte.
func (b *Batch) U8(typ uint16, v uint8) { copy(b.attr(typ, 1), []byte{v, 0, 0, 0}) }

// U16 appends v in network byte order.
func (b *Batch) U16(typ uint16, v uint16) {
	p := b.attr(typ, 2)
	binary.BigEndian.PutUint16(p, v)
	native.PutUint16(p[2:], 0)
}

// U32 appends v in network byte order, as nf_tables wants its numbers.
func (b *Batch) U32(typ uint16, v uint32) { binary.BigEndian.PutUint32(b.attr(typ, 4), v) }

// U64 appends v in network byte order.
func (b *Batch) U64(typ uint16, v uint64) { binary.BigEndian.PutUint64(b.attr(typ, 8), v) }

// NativeU16 appends v in the byte order of the machine.
func (b *Batch) NativeU16(typ uint16, v uint16) {
	p := b.attr(typ, 2)
	native.PutUint16(p, v)
	native.PutUint16(p[2:], 0)
}

// NativeU32 appends v in the byte order of the machine.
func (b *Batch) NativeU32(typ uint16, v uint32) { native.PutUint32(b.attr(typ, 4), v) }

// NativeU64 appends v in the byte order of the machine.
func (b *Batch) NativeU64(typ uint16, v uint64) { native.PutUint64(b.attr(typ, 8), v) }

// Nest begins an attribute that holds attributes (NLA_F_NESTED is set). [Batch.End] closes it.
func (b *Batch) Nest(typ uint16) Mark {
	m := Mark(len(b.buf))
	b.attr(typ|AttrNested, 0)
	if b.depth == maxNest {
		b.fail("attributes are nested more than %d deep", maxNest)
		return m
	}
	b.open[b.depth] = m
	b.depth++
	return m
}

// End closes the attribute m, which must be the one begun last.
func (b *Batch) End(m Mark) {
	if b.depth == 0 || b.open[b.depth-1] != m {
		b.fail("attributes are not closed in the order in which they were begun")
		return
	}
	b.depth--
	n := len(b.buf) - int(m)
	if n > MaxAttr {
		b.fail("attribute %d is %d bytes long, more than %d",
			native.Uint16(b.buf[m+2:])&attrTypeMask, n, MaxAttr)
		return
	}
	native.PutUint16(b.buf[m:], uint16(n))
}

// Raw appends whole attributes that are already encoded, and zeros up to a multiple of 4 bytes.
func (b *Batch) Raw(data []byte) {
	p := b.extend(align(len(data)))
	clear(p[copy(p, data):])
}

// AttrIter walks attributes without allocating:
//
//	it := rawnl.Attrs(m.Attrs)
//	for it.Next() {
//		switch it.Type() {
//		case attrName:
//			name = it.Text()
//		case attrFlags:
//			flags = it.U32()
//		}
//	}
//	if err := it.Err(); err != nil { … }
//
// The walk stops at the first malformed attribute, and at the first typed getter that finds data of
// another length. Err then returns the reason.
type AttrIter struct {
	all  []byte
	next int // where the next attribute begins in all
	typ  uint16
	data []byte
	err  error
}

// Attrs returns an iterator over the attributes in b.
func Attrs(b []byte) AttrIter { return AttrIter{all: b} }

// Next moves to the next attribute. It returns false at the end and after an error.
func (it *AttrIter) Next() bool {
	rest := it.all[it.next:]
	if it.err != nil || len(rest) == 0 {
		return false
	}
	if len(rest) < attrHeaderLen {
		it.err = fmt.Errorf("%w: %d bytes after the last attribute", ErrMalformed, len(rest))
		return false
	}
	n := int(native.Uint16(rest))
	typ := native.Uint16(rest[2:])
	if n < attrHeaderLen || n > len(rest) {
		it.err = fmt.Errorf("%w: attribute %d claims %d bytes, %d are there", ErrMalformed,
			typ&attrTypeMask, n, len(rest))
		return false
	}
	it.typ, it.data = typ, rest[attrHeaderLen:n:n]
	it.next += min(align(n), len(rest))
	return true
}

// offset returns where the next attribute begins.
func (it *AttrIter) offset() int { return it.next }

// Err returns the first error of the walk, an [ErrMalformed].
func (it *AttrIter) Err() error { return it.err }

// Type returns the attribute's type without the flags [AttrNested] and [AttrNetByteOrder].
func (it *AttrIter) Type() uint16 { return it.typ & attrTypeMask }

// Data returns the attribute's data. It points into the argument of [Attrs].
func (it *AttrIter) Data() []byte { return it.data }

// Nest returns an iterator over the attributes inside this one. That iterator has an error of its
// own: check it, too.
func (it *AttrIter) Nest() AttrIter { return Attrs(it.data) }

// Text returns the data as a string, up to the first NUL if there is one.
func (it *AttrIter) Text() string {
	if i := bytes.IndexByte(it.data, 0); i >= 0 {
		return string(it.data[:i])
	}
	return string(it.data)
}

// Fixed returns the data, which must be n bytes. If the length differs, it ends the walk and
// returns n zero bytes.
func (it *AttrIter) Fixed(n int) []byte {
	if len(it.data) != n {
		it.Fail("has %d bytes of data, want %d", len(it.data), n)
		return make([]byte, n)
	}
	return it.data
}

// Fail ends the walk because the attribute is malformed. The text continues the sentence that
// begins with the attribute: "is not a terminated string".
func (it *AttrIter) Fail(format string, args ...any) {
	if it.err == nil {
		it.err = fmt.Errorf("%w: attribute %d %s", ErrMalformed, it.Type(),
			fmt.Sprintf(format, args...))
	}
}

// U8 returns the data, which must be one byte.
func (it *AttrIter) U8() uint8 { return it.Fixed(1)[0] }

// U16 returns the data, which must be 2 bytes in network byte order.
func (it *AttrIter) U16() uint16 { return binary.BigEndian.Uint16(it.Fixed(2)) }

// U32 returns the data, which must be 4 bytes in network byte order.
func (it *AttrIter) U32() uint32 { return binary.BigEndian.Uint32(it.Fixed(4)) }

// U64 returns the data, which must be 8 bytes in network byte order.
func (it *AttrIter) U64() uint64 { return binary.BigEndian.Uint64(it.Fixed(8)) }

// NativeU16 returns the data, which must be 2 bytes in the byte order of the machine.
func (it *AttrIter) NativeU16() uint16 { return native.Uint16(it.Fixed(2)) }

// NativeU32 returns the data, which must be 4 bytes in the byte order of the machine.
func (it *AttrIter) NativeU32() uint32 { return native.Uint32(it.Fixed(4)) }

// NativeU64 returns the data, which must be 8 bytes in the byte order of the machine.
func (it *AttrIter) NativeU64() uint64 { return native.Uint64(it.Fixed(8)) }
