package rawnltest

import "syscall"

// Messages of netlink itself, and their flags (include/uapi/linux/netlink.h).
const (
	typeError uint16 = 2 // NLMSG_ERROR
	typeDone  uint16 = 3 // NLMSG_DONE

	flagMulti   uint16 = 0x002 // NLM_F_MULTI
	flagCapped  uint16 = 0x100 // NLM_F_CAPPED
	flagAckTLVs uint16 = 0x200 // NLM_F_ACK_TLVS

	ackText   uint16 = 1  // NLMSGERR_ATTR_MSG
	ackOffset uint16 = 2  // NLMSGERR_ATTR_OFFS
	ackOther  uint16 = 77 // an attribute that no kernel has
)

// Reply returns a message of the kernel. The body comes after the nlmsghdr.
func Reply(typ, flags uint16, seq uint32, body []byte) []byte {
	p := make([]byte, headerLen, headerLen+len(body))
	native.PutUint32(p, uint32(headerLen+len(body)))
	native.PutUint16(p[4:], typ)
	native.PutUint16(p[6:], flags)
	native.PutUint32(p[8:], seq)
	return append(p, body...)
}

// Error returns the NLMSG_ERROR about the request m, as the kernel does with NETLINK_CAP_ACK. With
// errno 0 it is an acknowledgement. With a text or an offset, it has an extended acknowledgement.
func Error(m Message, errno syscall.Errno, text string, offset uint32) []byte {
	body := native.AppendUint32(nil, uint32(-int32(errno)))
	quoted := Reply(m.Type, m.Flags, m.Seq, nil)
	native.PutUint32(quoted, uint32(headerLen+len(m.Body))) // more than is quoted
	body = append(body, quoted...)
	flags := flagCapped
	if text != "" || offset != 0 {
		flags |= flagAckTLVs
		body = appendAttr(body, ackText, append([]byte(text), 0))
		body = appendAttr(body, ackOffset, native.AppendUint32(nil, offset))
		body = appendAttr(body, ackOther, make([]byte, 4))
	}

	return Reply(typeError, flags, m.Seq, body)
}

// Done returns the NLMSG_DONE that ends a dump.
func Done(seq uint32, flags uint16, errno syscall.Errno) []byte {
	return Reply(typeDone, flagMulti|flags, seq, native.AppendUint32(nil, uint32(-int32(errno))))
}

// appendAttr appends an attribute and its padding.
func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(4+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}
