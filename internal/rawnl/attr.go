package rawnl

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Flags that may be or-ed to the type of an attribute (include/uapi/linux/netlink.h).
const (
	AttrNested       uint16 = 0x8000 // NLA_F_NESTED; [Batch.Nest] sets it
	AttrNetByteOrder uint16 = 0x4000 // NLA_F_NET_BYTEORDER; ipset requires it on numbers
)

// MaxAttr is the maximum length of one attribute, its 4-byte header included: nla_len has 16 bits.
const MaxAttr = 65535

const (
	attrHeaderLen        = 4 // struct nlattr
	attrTypeMask  uint16 = ^(AttrNested | AttrNetByteOrder)
)

// align rounds n up to a multiple of 4.
//
//	#define NLA_ALIGN(len) (((len) + NLA_ALIGNTO - 1) & ~(NLA_ALIGNTO - 1))
func align(n int) int { return (n + 3) &^ 3 }

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
// a different length. Err then returns the reason.
type AttrIter struct {
	all  []byte
	next int // the offset of the next attribute in all
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

// offset returns the offset of the next attribute.
func (it *AttrIter) offset() int { return it.next }

// Err returns the first error of the walk, an [ErrMalformed].
func (it *AttrIter) Err() error { return it.err }

// Type returns the attribute's type without the flags [AttrNested] and [AttrNetByteOrder].
func (it *AttrIter) Type() uint16 { return it.typ & attrTypeMask }

// Data returns the attribute's data. It points into the argument of [Attrs].
func (it *AttrIter) Data() []byte { return it.data }

// Nest returns an iterator over the attributes inside this one. That iterator has its own error:
// check it, too.
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

// Fail ends the walk because the attribute is malformed. The text continues a sentence about the
// attribute: "is not a terminated string".
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
