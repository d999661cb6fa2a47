package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// errUnwanted says that parsing a flow stopped because the caller does not want the flow.
var errUnwanted = errors.New("unwanted")

// parseFlow parses the attributes of IPCTNL_MSG_CT_NEW and IPCTNL_MSG_CT_DELETE into f, and
// overwrites all of f. The kernel writes Protocol and Original first. As soon as they are known,
// wants decides about the flow. If wants rejects it, parseFlow returns errUnwanted. This saves most
// of the cost of a search for a few flows among many.
func parseFlow(attrs []byte, f *Flow, wants func(*Flow) bool) (err error) {
	*f = Flow{}
	var reply Protocol // the protocol in the reply tuple
	var zone uint16    // the zone of both directions, 0 if each direction has its own
	it := rawnl.Attrs(attrs)
	for err == nil && it.Next() {
		switch it.Type() {
		case attrTupleOrig:
			if f.Original, f.Protocol, err = parseTuple(it.Nest()); err == nil && !wants(f) {
				return errUnwanted
			}
		case attrTupleReply:
			f.Reply, reply, err = parseTuple(it.Nest())
		case attrStatus:
			f.Status = Status(it.U32())
		case attrProtoInfo:
			err = f.parseProtoInfo(it.Nest())
		case attrTimeout:
			f.Timeout = time.Duration(it.U32()) * time.Second
		case attrMark:
			f.Mark = it.U32()
		case attrCountersOrig:
			f.OriginalCount, err = parseCount(it.Nest())
		case attrCountersReply:
			f.ReplyCount, err = parseCount(it.Nest())
		case attrID:
			f.ID = it.U32()
		case attrZone:
			zone = it.U16()
		case attrTimestamp:
			err = f.parseTimes(it.Nest())
		}
	}

	if err == nil {
		err = it.Err()
	}
	if err == nil {
		err = f.paired(reply)
	}
	if err != nil {
		return fmt.Errorf("parse flow: %w", err)
	}
	if zone != 0 {
		f.Original.Zone, f.Reply.Zone = zone, zone
	}
	return nil
}

// paired returns an error unless the two directions belong to one flow. reply is the protocol of
// the reply tuple.
func (f *Flow) paired(reply Protocol) error {
	if f.Original.Src.IsValid() && f.Reply.Src.IsValid() && f.Protocol == reply {
		return nil
	}
	return fmt.Errorf("%w: its two directions do not belong together", rawnl.ErrMalformed)
}

// appendDelete appends a request to delete exactly f. The kernel finds the flow by its reply tuple,
// which names the endpoint: if the same client has created a flow to a different endpoint since,
// that flow has a different reply tuple. The ID distinguishes f from a flow that the endpoint
// itself opened, whose original tuple is this reply tuple.
func appendDelete(b *rawnl.Batch, f *Flow) {
	b.Message(rawnl.SubsysConntrack, msgDelete, 0, uint8(f.family()), 0,
		rawnl.Object{Verb: "delete", Kind: "flow"})
	zoned := f.Original.Zone == f.Reply.Zone
	appendTuple(b, attrTupleReply, f.Protocol, f.Reply, !zoned && f.Reply.Zone != 0)
	appendZone(b, f)
	if f.ID != 0 {
		b.U32(attrID, f.ID)
	}
}

// appendGet appends a request for the flow with f's original tuple.
func appendGet(b *rawnl.Batch, f *Flow) {
	b.Message(rawnl.SubsysConntrack, msgGet, 0, uint8(f.family()), 0,
		rawnl.Object{Verb: "get", Kind: "flow"})
	appendTuple(b, attrTupleOrig, f.Protocol, f.Original, f.Original.Zone != f.Reply.Zone &&
		f.Original.Zone != 0)
	appendZone(b, f)
}

// appendCreate appends a request to create f. The kernel refuses the request if a flow has either
// of the tuples.
//
// Writing the reply tuple does not make the kernel translate packets: the flow would be listed as
// translated, but its packets would not be. The request must contain the inverse of the original
// tuple and the translation (CTA_NAT_DST, CTA_NAT_SRC). The kernel then builds the reply tuple.
func appendCreate(b *rawnl.Batch, f *Flow) {
	b.Message(rawnl.SubsysConntrack, msgNew, rawnl.FlagCreate|rawnl.FlagExcl, uint8(f.family()), 0,
		rawnl.Object{Verb: "create", Kind: "flow"})
	zoned := f.Original.Zone == f.Reply.Zone
	appendTuple(b, attrTupleOrig, f.Protocol, f.Original, !zoned && f.Original.Zone != 0)
	inverse := Tuple{
		Src: f.Original.Dst, Dst: f.Original.Src, Zone: f.Reply.Zone,
		ICMPType: f.Reply.ICMPType, ICMPCode: f.Reply.ICMPCode,
	}
	appendTuple(b, attrTupleReply, f.Protocol, inverse, !zoned && f.Reply.Zone != 0)

	// Only the kernel sets the other bits. It refuses a status that lacks bits that are already
	// set.
	if status := f.Status & (StatusSeenReply | StatusAssured | StatusFixedTimeout); status != 0 {
		b.U32(attrStatus, uint32(status|statusConfirmed))
	}
	b.U32(attrTimeout, uint32(f.Timeout/time.Second))
	if f.Mark != 0 {
		b.U32(attrMark, f.Mark)
	}
	appendZone(b, f)
	if f.Translated() {
		appendNAT(b, attrNATDst, f.Protocol, f.Reply.Src)
	}
	if f.masqueraded() {
		appendNAT(b, attrNATSrc, f.Protocol, f.Reply.Dst)
	}
	appendProtoInfo(b, f)
}

// appendZone appends the zone if both directions have the same zone. Otherwise the zones are in the
// tuples.
func appendZone(b *rawnl.Batch, f *Flow) {
	if f.Original.Zone != 0 && f.Original.Zone == f.Reply.Zone {
		b.U16(attrZone, f.Original.Zone)
	}
}

// appendNAT appends a translation to one address and port.
func appendNAT(b *rawnl.Batch, typ uint16, p Protocol, to netip.AddrPort) {
	nat := b.Nest(typ)
	appendAddr(b, to.Addr(), attrNATIPv4Min, attrNATIPv6Min)
	if !p.icmp() {
		proto := b.Nest(attrNATProto)
		b.U16(attrNATPortMin, to.Port())
		b.U16(attrNATPortMax, to.Port())
		b.End(proto)
	}

	b.End(nat)
}
