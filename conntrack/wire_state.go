package conntrack

import (
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Flags of one direction of a TCP connection (IP_CT_TCP_FLAG_*,
// include/uapi/linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpFlagCloseInit byte = 0x04 // after it is closed, a SYN may begin a new connection
	tcpFlagLiberal   byte = 0x08 // sequence numbers are not checked
)

// appendProtoInfo appends the state of f. A program that creates a flow does not know its sequence
// numbers, so the kernel must not check them. The tags of SCTP cannot be left out (sctp_nlattr_to),
// so an SCTP flow begins without a state.
func appendProtoInfo(b *rawnl.Batch, f *Flow) {
	if f.Protocol != TCP {
		return
	}
	flags := tcpFlagLiberal
	if f.TCP >= tcpFinWait && f.TCP <= tcpClose {
		flags |= tcpFlagCloseInit
	}
	wire := [2]byte{flags, flags} // struct nf_ct_tcp_flags: the flags and their mask
	info := b.Nest(attrProtoInfo)
	tcp := b.Nest(attrProtoInfoTCP)
	b.U8(attrTCPState, uint8(f.TCP))
	b.Attr(attrTCPFlagsOrig, wire[:])
	b.Attr(attrTCPFlagsReply, wire[:])
	b.End(tcp)
	b.End(info)
}

func (f *Flow) parseProtoInfo(it rawnl.AttrIter) error {
	for it.Next() {
		typ := it.Type()
		if typ != attrProtoInfoTCP && typ != attrProtoInfoSCTP {
			continue
		}
		state := it.Nest()
		for state.Next() {
			switch {
			case typ == attrProtoInfoTCP && state.Type() == attrTCPState:
				f.TCP = TCPState(state.U8())
			case typ == attrProtoInfoSCTP && state.Type() == attrSCTPState:
				f.SCTP = SCTPState(state.U8())
			}
		}

		if err := state.Err(); err != nil {
			return err
		}
	}

	return it.Err()
}

func (f *Flow) parseTimes(it rawnl.AttrIter) error {
	for it.Next() {
		switch it.Type() {
		case attrTimeStart:
			f.Start = time.Unix(0, int64(it.U64()))
		case attrTimeStop:
			f.Stop = time.Unix(0, int64(it.U64()))
		}
	}

	return it.Err()
}

func parseCount(it rawnl.AttrIter) (c Count, err error) {
	for it.Next() {
		switch it.Type() {
		case attrCountPackets:
			c.Packets = it.U64()
		case attrCountBytes:
			c.Bytes = it.U64()
		}
	}

	return c, it.Err()
}
