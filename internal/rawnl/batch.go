package rawnl

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	headerLen = 16            // struct nlmsghdr
	genLen    = 4             // struct nfgenmsg, and struct genlmsghdr
	frameLen  = 20            // both
	beginLen  = frameLen + 8  // NFNL_MSG_BATCH_BEGIN with NFNL_BATCH_GENID
	maxNest   = 16            // nf_tables nests six deep
	maxBuffer = 1<<31 - 1<<16 // the end of the range of the kernel's int lengths
)

// native is the byte order of netlink's own headers.
var native = binary.NativeEndian

// Batch is an append-only buffer of messages. The zero value is ready for use. Reset empties it and
// keeps the memory. A Batch must not be used by two goroutines at once.
//
// The buffer has room at its beginning for the message that begins a transaction. So Commit sends
// the buffer without a copy.
type Batch struct {
	buf   []byte
	msgs  []entry
	open  [maxNest]Mark // the open attributes, outermost first
	depth int
	err   error
	// checked says that the kernel only checks the transaction, because its end is not sent.
	checked bool
}

// entry is the batch's record of a message.
type entry struct {
	at  int // offset of the message in buf
	obj Object
}

// Reset empties the batch and keeps its memory. To release the memory, drop the batch.
func (b *Batch) Reset() {
	clear(b.msgs) // objects may refer to something large
	*b = Batch{buf: b.buf[:0], msgs: b.msgs[:0]}
}

// Grow makes room for this number of further messages and bytes, so that the growing batch need not
// be copied. The numbers are estimates.
func (b *Batch) Grow(messages, bytes int) {
	b.msgs = slices.Grow(b.msgs, messages)
	b.buf = slices.Grow(b.buf, bytes)
}

// Message ends the previous message, if any, and begins a new one. FlagRequest is added to flags.
// The sequence number is filled in when the batch is sent.
func (b *Batch) Message(subsys, msgType uint8, flags uint16, family uint8, resID uint16,
	obj Object) {
	_ = b.seal() // kept in b.err
	if len(b.msgs) == 0 {
		// transaction writes the begin message there
		b.buf = slices.Grow(b.buf[:0], beginLen+frameLen)[:beginLen]
	}

	b.msgs = append(b.msgs, entry{at: len(b.buf), obj: obj})
	putFrame(b.extend(frameLen), uint16(subsys)<<8|uint16(msgType), flags|FlagRequest, family,
		resID)
}

// Command ends the previous message, if any, and begins a message of generic netlink with the
// command and the version of its family (struct genlmsghdr). It is for connections of
// [DialGeneric]. These connections fill in the number of the family, because each kernel numbers
// families itself. FlagRequest is added to flags.
func (b *Batch) Command(cmd, version uint8, flags uint16, obj Object) {
	b.Message(0, 0, flags, cmd, 0, obj)
	b.buf[len(b.buf)-frameLen:][headerLen+1] = version
}

// putFrame writes both headers of a message without attributes, with sequence number 0.
func putFrame(p []byte, typ, flags uint16, family uint8, resID uint16) {
	_ = p[frameLen-1]
	native.PutUint32(p, frameLen)
	native.PutUint16(p[4:], typ)
	native.PutUint16(p[6:], flags)
	native.PutUint64(p[8:], 0) // nlmsg_seq, nlmsg_pid: the kernel fills in the latter
	p[16] = family
	p[17] = 0 // NFNETLINK_V0
	binary.BigEndian.PutUint16(p[18:], resID)
}

// Mark names an open attribute. It is valid until the batch is reset.
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

// Attr appends an attribute with data.
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

// U32 appends v in network byte order, the order of nf_tables.
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

// Nest begins an attribute that contains attributes (NLA_F_NESTED is set). [Batch.End] closes it.
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

// End closes the attribute m, which must be the innermost open attribute.
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

// Raw appends encoded attributes, and zeros up to a multiple of 4 bytes.
func (b *Batch) Raw(data []byte) {
	p := b.extend(align(len(data)))
	clear(p[copy(p, data):])
}

// seal ends the last message and returns the first mistake in the batch.
func (b *Batch) seal() error {
	if b.depth > 0 {
		at := b.open[b.depth-1]
		b.fail("attribute %d was not closed", native.Uint16(b.buf[at+2:])&attrTypeMask)
		b.depth = 0
	}

	if len(b.buf) > maxBuffer {
		b.fail("the batch has %d bytes, more than netlink can carry", len(b.buf))
	}
	if len(b.msgs) > 0 {
		at := b.msgs[len(b.msgs)-1].at
		native.PutUint32(b.buf[at:], uint32(len(b.buf)-at))
	}

	return b.err
}

// extend makes the last message n bytes longer and returns these bytes. They contain garbage: the
// caller must write every byte.
func (b *Batch) extend(n int) []byte {
	if len(b.msgs) == 0 {
		b.fail("data comes before any message")
	}
	at := len(b.buf)
	if cap(b.buf)-at < n {
		b.buf = slices.Grow(b.buf, n)
	}
	b.buf = b.buf[:at+n]
	return b.buf[at:]
}

// fail remembers the first mistake.
func (b *Batch) fail(format string, args ...any) {
	if b.err != nil {
		return
	}
	where := "before the first message"
	if len(b.msgs) > 0 {
		where = b.msgs[len(b.msgs)-1].obj.label(len(b.msgs) - 1)
	}
	b.err = fmt.Errorf("%w: %s: %s", ErrBadBatch, where, fmt.Sprintf(format, args...))
}

// Len returns the number of messages.
func (b *Batch) Len() int { return len(b.msgs) }

// Size returns the number of bytes that a Commit of the batch sends, begin and end messages
// included. [Conn.MaxBatch] limits it.
func (b *Batch) Size() int {
	if len(b.msgs) == 0 {
		return 0
	}
	return len(b.buf) + frameLen
}

// Bytes returns the messages without the begin and end messages of a transaction. The result is
// valid until the batch is changed. The sequence numbers are zero until the batch has been sent.
func (b *Batch) Bytes() []byte {
	if len(b.msgs) == 0 {
		return nil
	}
	_ = b.seal() // kept in b.err
	return b.buf[beginLen:]
}

// Err returns the first mistake in the batch so far, an [ErrBadBatch]: an attribute that is too
// long, was not closed, or is in no message.
func (b *Batch) Err() error { return b.err }

// endOf returns the end of message i in the buffer.
func (b *Batch) endOf(i int) int {
	if i+1 < len(b.msgs) {
		return b.msgs[i+1].at
	}
	return len(b.buf)
}

// At returns the bytes of message i, headers included.
func (b *Batch) At(i int) []byte { return b.buf[b.msgs[i].at:b.endOf(i)] }

// transaction returns the batch between its begin and end messages. genID 0 means any generation. A
// transaction that is only checked has no end message.
func (b *Batch) transaction(genID, beginSeq, endSeq uint32) []byte {
	begin := b.buf[:beginLen]
	if genID == 0 {
		begin = begin[beginLen-frameLen:]
	}
	putFrame(begin, msgBatchBegin, FlagRequest, 0, uint16(SubsysNFTables))
	native.PutUint32(begin, uint32(len(begin)))
	native.PutUint32(begin[8:], beginSeq)
	if genID != 0 {
		attr := begin[frameLen:]
		native.PutUint16(attr, 8)
		native.PutUint16(attr[2:], attrBatchGenID)
		binary.BigEndian.PutUint32(attr[4:], genID)
	}

	start, size := beginLen-len(begin), len(b.buf)
	if b.checked {
		return b.buf[start:]
	}
	end := b.extend(frameLen)
	putFrame(end, msgBatchEnd, FlagRequest, 0, uint16(SubsysNFTables))
	native.PutUint32(end[8:], endSeq)
	wire := b.buf[start:]
	b.buf = b.buf[:size]
	return wire
}
