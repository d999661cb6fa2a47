package nft

import (
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// TraceType is the subject of a trace event (enum nft_trace_types).
type TraceType uint32

// The types of events.
const (
	TracePolicy TraceType = iota + 1 // the end of a base chain
	TraceReturn                      // the end of another chain, or a rule that returns
	TraceRule                        // a rule that matched
)

// TraceInfo is one event of a traced packet in a message of the kernel (NFT_MSG_TRACE). The slices
// point into the message.
type TraceInfo struct {
	ID      uint32 // of the packet; after the loopback interface the packet has another ID
	Type    TraceType
	Table   string
	Chain   string
	Handle  uint64 // of the rule
	Verdict int32  // such as VerdictDrop
	ToChain string // of VerdictJump and VerdictGoto
	Policy  int32  // of TracePolicy
	// Network and Transport are the first bytes of the headers. Only the first event of each base
	// chain has them.
	Network, Transport []byte
	In, Out            uint32 // indices of interfaces
	NFProto            uint8  // of the packet, because a table of the family inet does not show it
	Mark               uint32
}

// DecodeTrace decodes the attributes of an event.
func DecodeTrace(attrs []byte) (TraceInfo, error) {
	var t TraceInfo
	it := rawnl.Attrs(attrs)
	for it.Next() {
		switch it.Type() {
		case attrTraceTable:
			t.Table = it.Text()
		case attrTraceChain:
			t.Chain = it.Text()
		case attrTraceRuleHandle:
			t.Handle = it.U64()
		case attrTraceType:
			t.Type = TraceType(it.U32())
		case attrTraceVerdict:
			if err := t.decodeVerdict(it.Nest()); err != nil {
				return t, err
			}
		case attrTracePolicy:
			t.Policy = int32(it.U32())
		case attrTraceID:
			t.ID = it.U32()
		case attrTraceNetwork:
			t.Network = it.Data()
		case attrTraceTransport:
			t.Transport = it.Data()
		case attrTraceIIF:
			t.In = it.U32()
		case attrTraceOIF:
			t.Out = it.U32()
		case attrTraceMark:
			t.Mark = it.U32()
		case attrTraceNFProto:
			t.NFProto = uint8(it.U32())
		}
	}

	return t, it.Err()
}

func (t *TraceInfo) decodeVerdict(it rawnl.AttrIter) error {
	for it.Next() {
		switch it.Type() {
		case AttrVerdictCode:
			t.Verdict = int32(it.U32())
		case AttrVerdictChain:
			t.ToChain = it.Text()
		}
	}

	return it.Err()
}

// Selectors for traces.
var (
	SPort = Selector{"th sport", portLen, func(b *rawnl.Batch, reg uint32) {
		AppendPayload(b, reg, TransportHeader, 0, portLen)
	}}
	IIFName = Selector{"iifname", interfaceNameLen, func(b *rawnl.Batch, reg uint32) {
		AppendMeta(b, reg, MetaIIFName)
	}}
	CTOriginalSPort = ctOriginal("proto-src", portLen, ctProtoSrc)
)

// is matches if the selected value is v; text is its form in nft.
func (s Selector) is(text string, v []byte) Rule {
	return rule(s.text+" "+text, func(b *rawnl.Batch) {
		s.load(b, Reg1)
		AppendCmp(b, CmpEq, v)
	})
}

// IsAddr matches if the selected address is a.
func (s Selector) IsAddr(a netip.Addr) Rule { return s.is(a.String(), a.AsSlice()) }

// IsPort matches if the selected port is port.
func (s Selector) IsPort(port uint16) Rule {
	return s.is(strconv.Itoa(int(port)), []byte{byte(port >> 8), byte(port)})
}

// IsProtocol matches if the selected protocol is p.
func (s Selector) IsProtocol(p servicemodel.Protocol) Rule {
	return s.is(p.String(), []byte{byte(p)})
}

// IsName matches if the selected interface name is name.
func (s Selector) IsName(name string) Rule {
	v := make([]byte, interfaceNameLen)
	copy(v, name)
	return s.is(strconv.Quote(name), v)
}

// The parts of a trace.
var (
	// TCPBegins matches the first segment of a connection.
	TCPBegins = rule("tcp flags & (fin | syn | rst | ack) == syn", func(b *rawnl.Batch) {
		AppendPayload(b, Reg1, TransportHeader, tcpFlagsOffset, 1)
		AppendBitwise(b, []byte{0x17}, nil)
		AppendCmp(b, CmpEq, []byte{0x02})
	})
	// TraceOn makes the kernel report each rule that the packet matches from here on.
	TraceOn = rule("meta nftrace set 1", func(b *rawnl.Batch) {
		elem, data := beginExpr(b, "immediate")
		b.U32(AttrImmediateDReg, Reg1)
		appendValue(b, AttrImmediateData, []byte{1})
		endExpr(b, elem, data)
		appendMetaSet(b, metaNFTrace)
	})
)

// LimitPerSecond matches at most n packets a second, and at most n at once.
func LimitPerSecond(n uint32) Rule {
	text := strconv.Itoa(int(n))
	return rule("limit rate "+text+"/second burst "+text+" packets", func(b *rawnl.Batch) {
		elem, data := beginExpr(b, "limit")
		b.U64(attrLimitRate, uint64(n))
		b.U64(attrLimitUnit, 1)
		b.U32(attrLimitBurst, n)
		b.U32(attrLimitType, 0) // NFT_LIMIT_PKTS
		b.U32(attrLimitFlags, 0)
		endExpr(b, elem, data)
	})
}
