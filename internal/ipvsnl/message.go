package ipvsnl

import (
	"fmt"
	"syscall"
)

const (
	headerLen    = 16                       // struct nlmsghdr
	genHeaderLen = 4                        // struct genlmsghdr
	frameLen     = headerLen + genHeaderLen // both
	maxMessage   = 1<<16 - 1                // nlmsg_len has 32 bits, but nothing here comes near
	ackBody      = 4 + headerLen            // struct nlmsgerr without the payload of the request
	genlVersion  = 1                        // IPVS_GENL_VERSION, and CTRL_CMD_GETFAMILY's
	// what one answer may take of the receive queue; see [Transport]
	ackReserve = 2 << 10
	errnoLimit = 4095                   // MAX_ERRNO, include/linux/err.h
	dumpFlags  = flagRequest | flagDump // a request for all of a kind
	ackFlags   = flagRequest | flagAck  // a request whose success is to be told
)

// Flags of a message (NLM_F_*, include/uapi/linux/netlink.h).
const (
	flagRequest     uint16 = 0x001 // NLM_F_REQUEST
	flagMulti       uint16 = 0x002 // NLM_F_MULTI: one of several replies
	flagAck         uint16 = 0x004 // NLM_F_ACK: answer also when all went well
	flagInterrupted uint16 = 0x010 // NLM_F_DUMP_INTR
	flagDump        uint16 = 0x300 // NLM_F_DUMP
	flagCapped      uint16 = 0x100 // NLM_F_CAPPED: an error without the payload of the request
	flagAckTLVs     uint16 = 0x200 // NLM_F_ACK_TLVS: an error with attributes
)

// Messages of netlink itself (include/uapi/linux/netlink.h).
const (
	typeError   uint16 = 2    // NLMSG_ERROR, also the acknowledgement
	typeDone    uint16 = 3    // NLMSG_DONE
	typeControl uint16 = 0x10 // GENL_ID_CTRL; what is below belongs to netlink

	ackAttrMessage uint16 = 1 // NLMSGERR_ATTR_MSG
)

// appendFrame appends both headers. endMessage, given the place where the message began, sets its
// length. Type and sequence number are filled in by stamp.
//
//	struct nlmsghdr { __u32 nlmsg_len; __u16 nlmsg_type; __u16 nlmsg_flags; __u32 nlmsg_seq; __u32 nlmsg_pid; };
//	struct genlmsghdr { __u8 cmd; __u8 version; __u16 reserved; };
func appendFrame(b []byte, flags uint16, cmd uint8) []byte {
	b = native.AppendUint32(b, frameLen)
	b = native.AppendUint16(b, 0)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint64(b, 0)
	return append(b, cmd, genlVersion, 0, 0)
}

// endMessage sets the length of the message that began at mark and ends b.
func endMessage(b []byte, mark int) []byte {
	native.PutUint32(b[mark:], uint32(len(b)-mark))
	return b
}

// stamp sets the type and the sequence number of the message at the beginning of b.
func stamp(b []byte, typ uint16, seq uint32) {
	native.PutUint16(b[4:], typ)
	native.PutUint32(b[8:], seq)
}

// message is one netlink message of a datagram.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte // after the nlmsghdr
}

// nextMessage takes the first message off a datagram that is not empty.
func nextMessage(data []byte) (m message, rest []byte, err error) {
	if len(data) < headerLen {
		return message{}, nil, fmt.Errorf("%w: %d bytes are too short for a header", ErrMalformed,
			len(data))
	}
	n := native.Uint32(data)
	if n < headerLen || uint64(n) > uint64(len(data)) {
		return message{}, nil, fmt.Errorf("%w: a message claims %d bytes, %d are there",
			ErrMalformed, n, len(data))
	}
	m = message{
		typ:   native.Uint16(data[4:]),
		flags: native.Uint16(data[6:]),
		seq:   native.Uint32(data[8:]),
		body:  data[headerLen:n:n],
	}
	return m, data[min(align(int(n)), len(data)):], nil
}

// command takes the genlmsghdr off m.
func (m message) command() (cmd uint8, attributes []byte, err error) {
	if len(m.body) < genHeaderLen {
		return 0, nil, fmt.Errorf("%w: a message of type %#x has no genlmsghdr",
			ErrMalformed, m.typ)
	}
	return m.body[0], m.body[genHeaderLen:], nil
}

// verdict is what an NLMSG_ERROR or NLMSG_DONE says about a request.
type verdict struct {
	errno syscall.Errno // 0: all went well
	text  string        // NLMSGERR_ATTR_MSG
}

// verdict decodes m, which is an NLMSG_ERROR or NLMSG_DONE:
//
//	struct nlmsgerr { int error; struct nlmsghdr msg; /* payload of msg unless NLM_F_CAPPED, attributes */ };
//
// NLMSG_DONE has the error, or nothing, and attributes at once.
func (m message) verdict() (verdict, error) {
	if m.typ == typeDone && len(m.body) == 0 {
		return verdict{}, nil
	}
	if len(m.body) < 4 {
		return verdict{}, fmt.Errorf("%w: an error of %d bytes", ErrMalformed, len(m.body))
	}
	code := -int64(int32(native.Uint32(m.body)))
	if code < 0 || code > errnoLimit {
		return verdict{}, fmt.Errorf("%w: error number %d", ErrMalformed, -code)
	}
	v := verdict{errno: syscall.Errno(code)}
	if m.flags&flagAckTLVs == 0 {
		return v, nil
	}
	at := 4
	if m.typ == typeError {
		if at = m.attrsOfAck(); at < 0 {
			return v, fmt.Errorf("%w: an error of %d bytes quotes more than there is", ErrMalformed,
				len(m.body))
		}
	}
	a := attrs{what: "acknowledgement", rest: m.body[at:]}
	for a.next() {
		if a.typ == ackAttrMessage {
			v.text = a.text(len(a.data))
		}
	}
	return v, a.err
}

// attrsOfAck returns where in the body of an NLMSG_ERROR the attributes begin: after what it quotes
// of the request. It returns -1 if that is not all there.
func (m message) attrsOfAck() int {
	if len(m.body) < ackBody {
		return -1
	}
	if m.flags&flagCapped != 0 {
		return ackBody
	}
	quoted := uint64(native.Uint32(m.body[4:]))
	if quoted < headerLen || quoted > uint64(len(m.body)-4) {
		return -1
	}
	return min(4+align(int(quoted)), len(m.body))
}

// appendVerdict appends the NLMSG_ERROR or NLMSG_DONE that says errno about the request m, for
// [Fake].
func appendVerdict(b []byte, typ uint16, m message, errno syscall.Errno) []byte {
	at := len(b)
	flags := flagCapped
	if typ == typeDone {
		flags = flagMulti
	}
	b = native.AppendUint32(b, 0)
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, m.seq)
	b = native.AppendUint32(b, 0)
	b = native.AppendUint32(b, uint32(-int32(errno)))
	if typ == typeError {
		b = native.AppendUint32(b, uint32(headerLen+len(m.body)))
		b = native.AppendUint16(b, m.typ)
		b = native.AppendUint16(b, m.flags)
		b = native.AppendUint32(b, m.seq)
		b = native.AppendUint32(b, 0)
	}
	return endMessage(b, at)
}
