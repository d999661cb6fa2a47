package rawnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"syscall"
)

// Subsystems of nfnetlink (NFNL_SUBSYS_*, include/uapi/linux/netfilter/nfnetlink.h).
const (
	SubsysConntrack uint8 = 1  // NFNL_SUBSYS_CTNETLINK
	SubsysIPSet     uint8 = 6  // NFNL_SUBSYS_IPSET
	SubsysNFTables  uint8 = 10 // NFNL_SUBSYS_NFTABLES
	SubsysNFTCompat uint8 = 11 // NFNL_SUBSYS_NFT_COMPAT
)

// Flags of a message (NLM_F_*, include/uapi/linux/netlink.h). Some flags share a bit. The meaning
// of the bit then depends on whether the message asks, creates or deletes.
const (
	FlagRequest uint16 = 0x001 // NLM_F_REQUEST; [Batch.Message] sets it on every message
	FlagMulti   uint16 = 0x002 // NLM_F_MULTI: one of several replies
	// NLM_F_ACK: answer also on success; [Conn] sets it where necessary
	FlagAck  uint16 = 0x004
	FlagIntr uint16 = 0x010 // NLM_F_DUMP_INTR: the dump is inconsistent
	FlagDump uint16 = 0x300 // NLM_F_DUMP; [Conn.Dump] sets it

	FlagReplace uint16 = 0x100 // NLM_F_REPLACE, for messages that create
	FlagExcl    uint16 = 0x200 // NLM_F_EXCL: fail if the object exists
	FlagCreate  uint16 = 0x400 // NLM_F_CREATE
	FlagAppend  uint16 = 0x800 // NLM_F_APPEND

	FlagNonRec uint16 = 0x100 // NLM_F_NONREC, for messages that delete

	flagCapped  uint16 = 0x100 // NLM_F_CAPPED: an error without the payload of the request
	flagAckTLVs uint16 = 0x200 // NLM_F_ACK_TLVS: an error with attributes
)

// Messages of netlink and nfnetlink themselves.
const (
	msgError      uint16 = 2    // NLMSG_ERROR, also the acknowledgement
	msgDone       uint16 = 3    // NLMSG_DONE
	minType       uint16 = 0x10 // NLMSG_MIN_TYPE: smaller types belong to netlink
	msgBatchBegin uint16 = 0x10 // NFNL_MSG_BATCH_BEGIN
	msgBatchEnd   uint16 = 0x11 // NFNL_MSG_BATCH_END

	attrBatchGenID uint16 = 1 // NFNL_BATCH_GENID

	attrAckMsg    uint16 = 1 // NLMSGERR_ATTR_MSG
	attrAckOffset uint16 = 2 // NLMSGERR_ATTR_OFFS
)

// Message is one message of the kernel, with decoded headers and encoded attributes for [Attrs].
// Inside the function given to [Conn.Dump], Attrs points into the receive buffer and is valid until
// that function returns.
//
// Generic netlink has a header of the same length. There, Subsys and Type are the number of the
// family, and Family is the command.
type Message struct {
	Subsys uint8  // high byte of nlmsg_type: one of the Subsys constants
	Type   uint8  // low byte of nlmsg_type, for example NFT_MSG_NEWSET
	Flags  uint16 // nlmsg_flags
	Family uint8  // nfgen_family, NFPROTO_*
	ResID  uint16 // res_id; nf_tables puts the low half of its generation id here
	// Port is nlmsg_pid: the port of the requesting socket. In a message to a multicast group, it
	// is the port of the socket that made the change.
	Port  uint32
	Attrs []byte
}

// packet is one netlink message of a datagram.
type packet struct {
	typ, flags uint16
	seq, port  uint32
	body       []byte // after the nlmsghdr
}

// nextPacket splits the first message off a datagram that is not empty.
func nextPacket(data []byte) (p packet, rest []byte, err error) {
	if len(data) < headerLen {
		return packet{}, nil, fmt.Errorf("%w: %d bytes are too short for a header", ErrMalformed,
			len(data))
	}

	n := native.Uint32(data)
	if n < headerLen || uint64(n) > uint64(len(data)) {
		return packet{}, nil, fmt.Errorf("%w: it claims %d bytes, %d are there", ErrMalformed, n,
			len(data))
	}

	p = packet{
		typ:   native.Uint16(data[4:]),
		flags: native.Uint16(data[6:]),
		seq:   native.Uint32(data[8:]),
		port:  native.Uint32(data[12:]),
		body:  data[headerLen:n:n],
	}
	return p, data[min(align(int(n)), len(data)):], nil
}

// message decodes the header that follows nlmsghdr in p, an nfgenmsg or a genlmsghdr.
func (p packet) message() (Message, error) {
	if len(p.body) < genLen {
		return Message{}, fmt.Errorf("%w: type %#x has %d bytes, too few for a second header",
			ErrMalformed, p.typ, len(p.body))
	}

	return Message{
		Subsys: uint8(p.typ >> 8),
		Type:   uint8(p.typ),
		Flags:  p.flags,
		Family: p.body[0],
		ResID:  binary.BigEndian.Uint16(p.body[2:]),
		Port:   p.port,
		Attrs:  p.body[genLen:],
	}, nil
}

// Messages calls fn with the messages of a datagram that belong to subsystems, in the form in which
// the kernel sends them to multicast groups. Their attributes point into data.
func Messages(data []byte, fn func(Message) error) error {
	for len(data) > 0 {
		p, rest, err := nextPacket(data)
		if err != nil {
			return err
		}
		data = rest
		if p.typ < minType {
			continue
		}
		m, err := p.message()
		if err != nil {
			return err
		}
		if err := fn(m); err != nil {
			return err
		}
	}

	return nil
}

// collect reads the answers to a datagram. The kernel answers the last message last, and then
// collect stops. It skips answers to other requests, and checks ctx before each system call. If the
// answer to the last message is missing, answers are lost, unless the kernel refused a transaction.
func (c *Conn) collect(ctx context.Context, r *request) error {
	sizes := c.sizes[:1]
	if r.many {
		sizes = c.sizes[:]
	}
	room := len(c.rx) / len(sizes)
	var lost, refused bool
	for found := false; !found; {
		if err := c.proceed(ctx); err != nil {
			return err
		}
		n, err := c.sock.Receive(c.rx, sizes)
		switch {
		case err == errOverrun:
			lost = true
			continue
		case err == errEmpty && r.whole && refused && !lost:
			return nil
		case err == errEmpty:
			return ErrAnswersLost
		case err != nil:
			return err
		}

		for slot, size := range sizes[:n] {
			if size > room {
				return fmt.Errorf("%w: a datagram of %d bytes, more than %d", ErrMalformed, size,
					room)
			}

			last, bad, err := r.answered(c.rx[slot*room:][:size])
			if err != nil {
				return err
			}
			found, refused = found || last, refused || bad
		}
	}

	if lost {
		return ErrAnswersLost
	}
	return nil
}

// answered passes on the answers in a datagram, except messages of netlink itself. It reports
// whether the last message has its answer, and whether the kernel refused a message.
func (r *request) answered(data []byte) (found, refused bool, err error) {
	lowest, last := 0, r.end-r.begin-1
	if r.whole {
		lowest = -1
	}
	for len(data) > 0 {
		var p packet
		if p, data, err = nextPacket(data); err != nil {
			return false, false, err
		}
		i := int(int32(p.seq - r.first))
		if i < lowest || i > last {
			continue
		}
		switch {
		case p.typ == msgError || p.typ == msgDone:
			var v verdict
			v, err = p.verdict()
			if err == nil && r.ended != nil {
				err = r.ended(r.begin+i, v)
			}
			found, refused = found || i == last, refused || v.errno != 0
		case p.typ >= minType && r.reply != nil:
			var m Message
			if m, err = p.message(); err == nil {
				err = r.reply(r.begin+i, m)
			}
		}

		if err != nil {
			return false, false, err
		}
	}

	return found, refused, nil
}

// verdict is the content of an NLMSG_ERROR or NLMSG_DONE about a request.
type verdict struct {
	errno  syscall.Errno // 0: success
	text   string        // NLMSGERR_ATTR_MSG
	offset int           // NLMSGERR_ATTR_OFFS, 0 if not given
	torn   bool          // NLM_F_DUMP_INTR: the dump was interrupted before its end
}

// verdict parses p, which is an NLMSG_ERROR or NLMSG_DONE:
//
//	struct nlmsgerr { int error; struct nlmsghdr msg; };
//
// The payload of msg follows, unless NLM_F_CAPPED is set, and then attributes. In NLMSG_DONE,
// attributes follow the error immediately, and the error may be missing.
func (p packet) verdict() (verdict, error) {
	torn := p.flags&FlagIntr != 0
	if p.typ == msgDone && len(p.body) < 4 {
		return verdict{torn: torn}, nil
	}
	if len(p.body) < 4 {
		return verdict{}, fmt.Errorf("%w: an error of %d bytes", ErrMalformed, len(p.body))
	}
	code := int32(native.Uint32(p.body))
	if code > 0 {
		return verdict{}, fmt.Errorf("%w: error number %d is positive", ErrMalformed, code)
	}
	v := verdict{errno: syscall.Errno(-int64(code)), torn: torn} // some of ipset's are above 4095
	if p.flags&flagAckTLVs == 0 {
		return v, nil
	}
	at := 4
	if p.typ == msgError {
		n, err := p.quotedLen()
		if err != nil {
			return v, err
		}
		at += n
	}

	it := Attrs(p.body[at:])
	for it.Next() {
		switch it.Type() {
		case attrAckMsg:
			v.text = it.Text()
		case attrAckOffset:
			v.offset = int(min(it.NativeU32(), math.MaxInt32))
		}
	}

	return v, it.Err()
}

// quotedLen returns the number of bytes of the request that an error repeats.
func (p packet) quotedLen() (int, error) {
	if len(p.body) < 4+headerLen {
		return 0, fmt.Errorf("%w: an error of %d bytes", ErrMalformed, len(p.body))
	}
	if p.flags&flagCapped != 0 {
		return headerLen, nil
	}
	n := uint64(native.Uint32(p.body[4:]))
	if n < headerLen || n > uint64(len(p.body)-4) {
		return 0, fmt.Errorf("%w: an error quotes %d bytes, %d are there", ErrMalformed, n,
			len(p.body)-4)
	}

	return min(align(int(n)), len(p.body)-4), nil
}
