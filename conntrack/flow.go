package conntrack

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"
)

// Flow is one entry of the conntrack table, as the kernel reported it: a snapshot. Fields that the
// kernel did not report are zero.
type Flow struct {
	Protocol Protocol
	// Original is the tuple of the first packet when it arrived. Reply is the tuple of the other
	// side's packets when they arrive. If the flow is translated, the tuples are not each other's
	// inverse. The source of Reply is the endpoint that answers.
	Original, Reply Tuple

	Status  Status
	Timeout time.Duration // time until the kernel forgets the flow, in whole seconds
	Mark    uint32        // connection mark
	// ID distinguishes flows. It is a keyed hash of the original tuple and of the kernel's memory
	// address of the flow (nf_ct_get_id, since Linux 5.3). If a flow is deleted and created again
	// at once with the same original tuple, the new flow probably gets the same ID, so
	// [Table.Delete] does not rely on the ID alone.
	ID uint32

	TCP  TCPState
	SCTP SCTPState

	// OriginalCount and ReplyCount require the sysctl nf_conntrack_acct, which is off by default.
	OriginalCount, ReplyCount Count
	// Start and Stop require the sysctl nf_conntrack_timestamp, which is off by default. Only
	// destroy events have Stop.
	Start, Stop time.Time
}

// Tuple is one direction of a flow.
type Tuple struct {
	// Src and Dst are the source and the destination of a packet. For ICMP, both ports are the
	// identifier. For a protocol without ports, they are 0.
	Src, Dst netip.AddrPort
	// ICMPType and ICMPCode are for ICMP and ICMPv6 only.
	ICMPType, ICMPCode uint8
	// Zone is the conntrack zone of this direction; 0 is the default zone. Most zones cover both
	// directions.
	Zone uint16
}

// Count is the traffic in one direction of a flow.
type Count struct{ Packets, Bytes uint64 }

// family returns the family of the flow's addresses.
func (f *Flow) family() nfFamily { return familyOf(f.Original.Dst.Addr()) }

// Zone returns the zone of the flow, even if it is the zone of one direction only.
func (f *Flow) Zone() uint16 {
	if f.Original.Zone != 0 {
		return f.Original.Zone
	}
	return f.Reply.Zone
}

// Translated reports whether the flow's destination differs from the one that the client addressed.
// DNAT changes the destination, and so does IPVS, which does not set IPS_DST_NAT.
func (f *Flow) Translated() bool { return f.Reply.Src != f.Original.Dst }

// masqueraded reports whether the endpoint sees a source other than the client's address.
func (f *Flow) masqueraded() bool { return f.Reply.Dst != f.Original.Src }

// String returns the flow on one line, in the style of conntrack -L.
func (f Flow) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", f.Protocol, int(f.Timeout/time.Second))
	switch {
	case f.Protocol == TCP:
		fmt.Fprintf(&b, " %s", f.TCP)
	case f.Protocol == SCTP:
		fmt.Fprintf(&b, " %s", f.SCTP)
	}

	b.WriteString(f.Original.text(f.Protocol))
	if f.Status&StatusSeenReply == 0 {
		b.WriteString(" [UNREPLIED]")
	}
	b.WriteString(f.Reply.text(f.Protocol))
	for _, bit := range []struct {
		status Status
		text   string
	}{{statusHWOffload, "HW_OFFLOAD"}, {statusOffload, "OFFLOAD"}, {StatusAssured, "ASSURED"}} {
		if f.Status&bit.status != 0 {
			fmt.Fprintf(&b, " [%s]", bit.text)
		}
	}

	fmt.Fprintf(&b, " mark=%d", f.Mark)
	switch original, reply := f.Original.Zone, f.Reply.Zone; {
	case original != 0 && original == reply:
		fmt.Fprintf(&b, " zone=%d", original)
	case original != 0:
		fmt.Fprintf(&b, " zone-orig=%d", original)
	case reply != 0:
		fmt.Fprintf(&b, " zone-reply=%d", reply)
	}

	return b.String()
}

func (t Tuple) text(p Protocol) string {
	s := fmt.Sprintf(" src=%s dst=%s", t.Src.Addr(), t.Dst.Addr())
	switch {
	case p.icmp():
		return s + fmt.Sprintf(" type=%d code=%d id=%d", t.ICMPType, t.ICMPCode, t.Src.Port())
	case t.Src.Port() == 0 && t.Dst.Port() == 0:
		return s // s has no ports
	}

	return s + fmt.Sprintf(" sport=%d dport=%d", t.Src.Port(), t.Dst.Port())
}

func familyOf(a netip.Addr) nfFamily {
	switch {
	case a.Is4():
		return familyIPv4
	case a.Is6():
		return familyIPv6
	}

	return familyAny
}

// All returns the flows as a sequence, for functions that take a sequence.
func All(flows ...Flow) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for _, f := range flows {
			if !yield(f, nil) {
				return
			}
		}
	}
}
