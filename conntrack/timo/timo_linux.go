package timo

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/kernlb/kernlb/conntrack"
)

// ErrNoFlow says that a value is not a flow that a kernel can report.
var ErrNoFlow = errors.New("not a flow")

// To returns f in the type of ti-mo/conntrack, as [ct.Conn.Dump] would return it.
//
// The conversion is lossless for a flow that the kernel reported. For other flows, To drops the
// state of TCP and SCTP if the flow has a different protocol, the ICMP type, code and identifier if
// it is not ICMP, and fractions of a second of the timeout.
//
// The kernel does not translate a flow that [ct.Conn.Create] adds to the table, even if its tuples
// differ: the request lacks the translation (CTA_NAT_SRC, CTA_NAT_DST). [conntrack.Table.Create]
// sends the translation.
func To(f conntrack.Flow) ct.Flow {
	out := ct.Flow{
		ID: f.ID, Mark: f.Mark, Status: ct.Status(f.Status),
		Timeout:       uint32(min(max(f.Timeout/time.Second, 0), math.MaxUint32)),
		Timestamp:     ct.Timestamp{Start: f.Start, Stop: f.Stop},
		TupleOrig:     tuple(f.Protocol, f.Original),
		TupleReply:    tuple(f.Protocol, f.Reply),
		CountersOrig:  counter(f.OriginalCount, false),
		CountersReply: counter(f.ReplyCount, true),
	}
	if f.Original.Zone == f.Reply.Zone {
		out.Zone, out.TupleOrig.Zone, out.TupleReply.Zone = f.Original.Zone, 0, 0
	}
	switch {
	case f.Protocol == conntrack.TCP && f.TCP != 0:
		out.ProtoInfo.TCP = &ct.ProtoInfoTCP{State: uint8(f.TCP)}
	case f.Protocol == conntrack.SCTP && f.SCTP != 0:
		out.ProtoInfo.SCTP = &ct.ProtoInfoSCTP{State: uint8(f.SCTP)}
	}

	return out
}

func tuple(p conntrack.Protocol, t conntrack.Tuple) ct.Tuple {
	out := ct.Tuple{
		IP: ct.IPTuple{SourceAddress: t.Src.Addr(), DestinationAddress: t.Dst.Addr()},
		Proto: ct.ProtoTuple{Protocol: uint8(p), ICMPv4: p == protoICMP,
			ICMPv6: p == protoICMPv6},
		Zone: t.Zone,
	}
	if icmp(p) {
		out.Proto.ICMPID, out.Proto.ICMPType, out.Proto.ICMPCode = t.Src.Port(), t.ICMPType,
			t.ICMPCode
	} else {
		out.Proto.SourcePort, out.Proto.DestinationPort = t.Src.Port(), t.Dst.Port()
	}

	return out
}

// IANA protocol numbers.
const (
	protoICMP   conntrack.Protocol = 1
	protoICMPv6 conntrack.Protocol = 58
)

func icmp(p conntrack.Protocol) bool { return p == protoICMP || p == protoICMPv6 }

func counter(c conntrack.Count, reply bool) ct.Counter {
	if c == (conntrack.Count{}) {
		return ct.Counter{} // the kernel did not count
	}
	return ct.Counter{Direction: reply, Packets: c.Packets, Bytes: c.Bytes}
}

// From returns a flow that ti-mo/conntrack read, or [ErrNoFlow].
//
// It drops everything that [conntrack.Flow] lacks: helper, labels, master, security context,
// adjustments of sequence numbers, SYN proxy, use count, the window scales and flags of TCP, the
// tags of SCTP, and the state of DCCP.
func From(f ct.Flow) (conntrack.Flow, error) {
	p := conntrack.Protocol(f.TupleOrig.Proto.Protocol)
	if reply := conntrack.Protocol(f.TupleReply.Proto.Protocol); p != reply {
		return conntrack.Flow{}, fmt.Errorf("%w: its directions are of %s and %s", ErrNoFlow, p,
			reply)
	}

	out := conntrack.Flow{
		Protocol: p, ID: f.ID, Mark: f.Mark, Status: conntrack.Status(f.Status),
		Timeout:       time.Duration(f.Timeout) * time.Second,
		Start:         f.Timestamp.Start,
		Stop:          f.Timestamp.Stop,
		OriginalCount: count(f.CountersOrig),
		ReplyCount:    count(f.CountersReply),
	}
	var err error
	if out.Original, err = fromTuple(f.TupleOrig, f.Zone); err != nil {
		return conntrack.Flow{}, err
	}
	if out.Reply, err = fromTuple(f.TupleReply, f.Zone); err != nil {
		return conntrack.Flow{}, err
	}
	if f.ProtoInfo.TCP != nil {
		out.TCP = conntrack.TCPState(f.ProtoInfo.TCP.State)
	}
	if f.ProtoInfo.SCTP != nil {
		out.SCTP = conntrack.SCTPState(f.ProtoInfo.SCTP.State)
	}
	return out, nil
}

// fromTuple returns a tuple of a flow. zone is the zone of both directions, or 0 if each direction
// has its own.
func fromTuple(t ct.Tuple, zone uint16) (conntrack.Tuple, error) {
	src, dst := t.IP.SourceAddress, t.IP.DestinationAddress
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return conntrack.Tuple{}, fmt.Errorf("%w: from %s to %s", ErrNoFlow, src, dst)
	}
	out := conntrack.Tuple{Zone: t.Zone}
	if zone != 0 {
		out.Zone = zone
	}
	sport, dport := t.Proto.SourcePort, t.Proto.DestinationPort
	if icmp(conntrack.Protocol(t.Proto.Protocol)) {
		sport, dport = t.Proto.ICMPID, t.Proto.ICMPID
		out.ICMPType, out.ICMPCode = t.Proto.ICMPType, t.Proto.ICMPCode
	}

	out.Src, out.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return out, nil
}

func count(c ct.Counter) conntrack.Count {
	return conntrack.Count{Packets: c.Packets, Bytes: c.Bytes}
}
