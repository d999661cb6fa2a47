package conntrack

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"
)

// Flow is one entry of the conntrack table, as the kernel reported it: a snapshot. What the kernel
// did not report is zero.
type Flow struct {
	Protocol Protocol
	// Original is what the first packet looked like when it arrived. Reply is what a packet of the
	// other side looks like when it arrives: translation shows where the two are not each other's
	// inverse. The source of Reply is the endpoint that answers.
	Original, Reply Tuple

	Status  Status
	Timeout time.Duration // until the kernel forgets the flow if no packet comes; whole seconds
	Mark    uint32        // connection mark
	// ID tells flows apart: it is a keyed hash of the original tuple and of where in memory the
	// kernel keeps the flow (nf_ct_get_id, since Linux 5.3). A flow that is made again with the
	// same original tuple right after the first was deleted is likely to get the same ID:
	// [Table.Delete] does not rely on it alone.
	ID uint32

	TCP  TCPState
	SCTP SCTPState

	// OriginalCount and ReplyCount need the sysctl nf_conntrack_acct, which is off by default.
	OriginalCount, ReplyCount Count
	// Start and Stop need the sysctl nf_conntrack_timestamp, which is off by default; Stop is in
	// destroy events only.
	Start, Stop time.Time
}

// Tuple is one direction of a flow.
type Tuple struct {
	// Src and Dst are where a packet comes from and goes to. For ICMP, both ports are the
	// identifier; a protocol without ports has 0 there.
	Src, Dst netip.AddrPort
	// ICMPType and ICMPCode are of ICMP and ICMPv6 only.
	ICMPType, ICMPCode uint8
	// Zone is the conntrack zone of this direction; 0 is the default zone. Most zones cover both
	// directions.
	Zone uint16
}

// Count is what went in one direction of a flow.
type Count struct{ Packets, Bytes uint64 }

// Family returns the family of the flow's addresses.
func (f *Flow) Family() Family { return familyOf(f.Original.Dst.Addr()) }

// Zone returns the zone of the flow, be it of both directions or of one.
func (f *Flow) Zone() uint16 {
	if f.Original.Zone != 0 {
		return f.Original.Zone
	}
	return f.Reply.Zone
}

// Translated reports whether the flow was sent somewhere else than where the client meant it to go:
// by DNAT, or by IPVS, which does not set [StatusDstNAT].
func (f *Flow) Translated() bool { return f.Reply.Src != f.Original.Dst }

// Masqueraded reports whether the endpoint sees another source than the client's.
func (f *Flow) Masqueraded() bool { return f.Reply.Dst != f.Original.Src }

// String returns the flow on one line, in the manner of conntrack -L.
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
	}{{StatusHWOffload, "HW_OFFLOAD"}, {StatusOffload, "OFFLOAD"}, {StatusAssured, "ASSURED"}} {
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
		return s // of a protocol without ports
	}
	return s + fmt.Sprintf(" sport=%d dport=%d", t.Src.Port(), t.Dst.Port())
}

func familyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return IPv4
	case a.Is6():
		return IPv6
	}
	return AnyFamily
}

// All returns the flows as a sequence, for functions that take one.
func All(flows ...Flow) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for _, f := range flows {
			if !yield(f, nil) {
				return
			}
		}
	}
}

// Where returns the flows of seq for which keep is true. Errors pass.
func Where(seq iter.Seq2[Flow, error], keep func(*Flow) bool) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		for f, err := range seq {
			if err == nil && !keep(&f) {
				continue
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// CountBy counts the flows of seq by a key: the endpoint that answers them, the frontend they were
// sent to, the client. It stops at the first error and returns it with what was counted so far.
func CountBy[K comparable](seq iter.Seq2[Flow, error], key func(*Flow) K) (map[K]int, error) {
	counts := map[K]int{}
	for f, err := range seq {
		if err != nil {
			return counts, err
		}
		counts[key(&f)]++
	}
	return counts, nil
}
