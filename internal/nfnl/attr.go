package nfnl

// Flags that may be or-ed to the type of an attribute (include/uapi/linux/netlink.h).
const (
	AttrNested       uint16 = 0x8000 // NLA_F_NESTED; [Batch.Nest] sets it
	AttrNetByteOrder uint16 = 0x4000 // NLA_F_NET_BYTEORDER; ipset wants it on numbers
)

// MaxAttr is the greatest length of one attribute, its 4-byte header included: nla_len has 16 bits.
const MaxAttr = 65535

// Mark names an attribute that was begun and is still open.
type Mark int

// Attr appends an attribute that holds data.
func (b *Batch) Attr(typ uint16, data []byte) {}

// Text appends s as a NUL-terminated string.
func (b *Batch) Text(typ uint16, s string) {}

// Flag appends an attribute without data.
func (b *Batch) Flag(typ uint16) {}

// U8 appends one byte.
func (b *Batch) U8(typ uint16, v uint8) {}

// U16 appends v in network byte order.
func (b *Batch) U16(typ uint16, v uint16) {}

// U32 appends v in network byte order, as nf_tables wants its numbers.
func (b *Batch) U32(typ uint16, v uint32) {}

// U64 appends v in network byte order.
func (b *Batch) U64(typ uint16, v uint64) {}

// NativeU16 appends v in the byte order of the machine.
func (b *Batch) NativeU16(typ uint16, v uint16) {}

// NativeU32 appends v in the byte order of the machine.
func (b *Batch) NativeU32(typ uint16, v uint32) {}

// NativeU64 appends v in the byte order of the machine.
func (b *Batch) NativeU64(typ uint16, v uint64) {}

// Nest begins an attribute that holds attributes (NLA_F_NESTED is set). It is closed by [Batch.End].
func (b *Batch) Nest(typ uint16) Mark { return 0 }

// Begin begins an attribute whose data the caller appends piece by piece with [Batch.Raw] and its
// kin: a concatenated key, a struct. It is closed by [Batch.End].
func (b *Batch) Begin(typ uint16) Mark { return 0 }

// End closes the attribute m, which must be the one begun last.
func (b *Batch) End(m Mark) {}

// Raw appends data as it is and pads it with zeros to a multiple of 4 bytes. Inside [Batch.Begin] the
// padding counts as data, which is just how nf_tables lays out the fields of a concatenation. Elsewhere data must be
// whole attributes, encoded before.
func (b *Batch) Raw(data []byte) {}

// RawU8 appends v and three zero bytes.
func (b *Batch) RawU8(v uint8) {}

// RawU16 appends v in network byte order and two zero bytes.
func (b *Batch) RawU16(v uint16) {}

// RawU32 appends v in network byte order.
func (b *Batch) RawU32(v uint32) {}

// RawNativeU32 appends v in the byte order of the machine.
func (b *Batch) RawNativeU32(v uint32) {}

// AttrLen returns the present length of the open attribute m, header included.
func (b *Batch) AttrLen(m Mark) int { return 0 }

// Room returns how many bytes still fit into the open attribute m before it exceeds [MaxAttr].
func (b *Batch) Room(m Mark) int { return 0 }

// AttrIter walks attributes without allocating:
//
//	it := nfnl.Attrs(m.Attrs)
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
// The first malformed attribute, and the first typed getter that finds data of another length,
// stops the walk; Err then says what was wrong.
type AttrIter struct{ _ struct{} }

// Attrs returns an iterator over the attributes in b.
func Attrs(b []byte) AttrIter { return AttrIter{} }

// Next moves to the next attribute. It returns false at the end and after an error.
func (it *AttrIter) Next() bool { return false }

// Err returns the first error of the walk.
func (it *AttrIter) Err() error { return nil }

// Type returns the attribute's type without the flags [AttrNested] and [AttrNetByteOrder].
func (it *AttrIter) Type() uint16 { return 0 }

// Data returns the attribute's data. It points into what was given to [Attrs].
func (it *AttrIter) Data() []byte { return nil }

// Nest returns an iterator over the attributes inside this one. Its error is its own: check it, too.
func (it *AttrIter) Nest() AttrIter { return AttrIter{} }

// Text returns the data as a string, up to the first NUL if there is one.
func (it *AttrIter) Text() string { return "" }

// U8 returns the data, which must be one byte.
func (it *AttrIter) U8() uint8 { return 0 }

// U16 returns the data, which must be 2 bytes in network byte order.
func (it *AttrIter) U16() uint16 { return 0 }

// U32 returns the data, which must be 4 bytes in network byte order.
func (it *AttrIter) U32() uint32 { return 0 }

// U64 returns the data, which must be 8 bytes in network byte order.
func (it *AttrIter) U64() uint64 { return 0 }

// NativeU16 returns the data, which must be 2 bytes in the byte order of the machine.
func (it *AttrIter) NativeU16() uint16 { return 0 }

// NativeU32 returns the data, which must be 4 bytes in the byte order of the machine.
func (it *AttrIter) NativeU32() uint32 { return 0 }

// NativeU64 returns the data, which must be 8 bytes in the byte order of the machine.
func (it *AttrIter) NativeU64() uint64 { return 0 }
