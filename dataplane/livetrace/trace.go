package livetrace

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config says which packets to trace, and where.
type Config struct {
	// NetNS names the network namespace to trace in.
	NetNS netns.Namespace
	// Filter selects the packets to trace.
	Filter Filter
	// Patience is the time without an event after which a packet counts as lost, and the time that
	// the tracer waits for an answer. Zero means a second.
	Patience time.Duration
}

// Filter selects the packets to trace. Only packets that start a connection are traced, as far as
// the packet itself shows this; in TCP, its flags do.
type Filter struct {
	// Src is the source address of the packets. The zero value means any source. SrcPort 0 means
	// any port.
	Src     netip.Addr
	SrcPort uint16
	// Dst is the destination of the packets before translation.
	Dst netip.AddrPort
	// Protocol is TCP, UDP or SCTP.
	Protocol servicemodel.Protocol
	// InInterface is the name of the interface on which the packets arrive. Empty means any
	// interface, and includes packets of the node itself, which have none.
	InInterface string
}

// check names the field that is wrong.
func (f *Filter) check() error {
	switch {
	case !f.Dst.IsValid() || f.Dst.Port() == 0:
		return errors.New("Filter.Dst: want an address and a port")
	case !f.Protocol.Valid():
		return fmt.Errorf("Filter.Protocol: %v: want TCP, UDP or SCTP", f.Protocol)
	case f.Src.IsValid() && f.Src.Is4() != f.Dst.Addr().Is4():
		return fmt.Errorf("Filter.Src: %v and %v are of different address families", f.Src, f.Dst)
	case f.Dst.Addr().Is4In6() || f.Src.Is4In6():
		return errors.New("Filter: an IPv4 address is written as IPv6")
	case len(f.InInterface) > 15:
		return fmt.Errorf("Filter.InInterface: %q is longer than the name of an interface",
			f.InInterface)
	}

	return nil
}

// Packet describes a packet at one point of its path.
type Packet struct {
	Src netip.AddrPort `json:"src"` // without ports in ICMP
	Dst netip.AddrPort `json:"dst"`
	// Protocol is the protocol number.
	Protocol servicemodel.Protocol `json:"protocol"`
	// Kind is the kind of packet: "syn", "syn-ack", "rst" and other flags of TCP, "init",
	// "init-ack" and "abort" of SCTP, "unreachable" of ICMP; empty if it is unknown.
	Kind string `json:"kind,omitzero"`
}

// refusal reports whether the packet says that nothing listens, or that the destination cannot be
// reached.
func (p Packet) refusal() bool {
	return p.Kind == "rst" || p.Kind == "rst-ack" || p.Kind == "abort" || p.Kind == "unreachable"
}

// String returns the packet, such as "tcp 10.244.1.1:40000 -> 10.96.0.10:80, syn".
func (p Packet) String() string {
	name := p.Protocol.String()
	if p.Protocol == protocolICMP || p.Protocol == protocolICMPv6 {
		name = "icmp"
	}
	s := fmt.Sprintf("%s %s -> %s", name, place(p.Src), place(p.Dst))
	if p.Kind != "" {
		s += ", " + p.Kind
	}
	return s
}

// place is an address, and a port if there is one.
func place(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// Rule names a rule, or a base chain whose policy gave the verdict.
type Rule struct {
	Family string `json:"family"` // "ip", "ip6", "inet"
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Handle uint64 `json:"handle,omitzero"` // 0: the policy of the chain
	// Comment is the rule's comment. Text is its matches and statements in readable form. Both are
	// empty if the rule no longer existed when the tracer read it.
	Comment string `json:"comment,omitzero"`
	Text    string `json:"text,omitzero"`

	family  uint8
	refuses bool
}

// String returns where the rule is: `inet firewall forward, handle 5 ("no web")`.
func (r Rule) String() string {
	s := r.Family + " " + r.Table + " " + r.Chain
	if r.Handle == 0 {
		return s + ", its policy"
	}
	s += fmt.Sprintf(", handle %d", r.Handle)
	if r.Comment != "" {
		s += fmt.Sprintf(" (%q)", r.Comment)
	}
	return s
}

// Step is one step of a packet's path.
type Step struct {
	// Hook is the hook of the step: "prerouting", "input", "forward", "output" or "postrouting".
	Hook string `json:"hook"`
	// Rule is the rule that the packet matched, or the chain whose end it reached; nil if the step
	// changed the packet itself.
	Rule *Rule `json:"rule,omitempty"`
	// Verdict is the verdict of the rule or the policy: "accept", "drop", "jump services",
	// "continue".
	Verdict string `json:"verdict,omitempty"`
	// Packet is the packet after this step, if Rule is nil.
	Packet *Packet `json:"packet,omitempty"`
	// Taken means that something other than nf_tables, such as IPVS, took the packet out of the
	// hook and sent it on.
	Taken bool `json:"taken,omitzero"`
}

// Fate says in one word what happened to a packet.
type Fate string

// The fates.
const (
	// Lost: no rule dropped it. The routing decision, or something other than nf_tables, dropped
	// the packet.
	Lost      Fate = "lost"
	Dropped   Fate = "dropped"   // by a rule, or by the policy of a chain
	Refused   Fate = "refused"   // by a rule that rejects it
	Delivered Fate = "delivered" // to this node
	Sent      Fate = "sent"      // through an interface
)

// Trace is the path of one packet.
type Trace struct {
	// Packet is the packet as it arrived. In is the interface, empty if the node sent the packet.
	Packet Packet `json:"packet"`
	In     string `json:"in,omitempty"`
	Steps  []Step `json:"steps"`
	// Last is the packet as it was at the last event, translated or not.
	Last Packet `json:"last"`
	Fate Fate   `json:"fate"`
	// By is the rule that dropped or refused the packet, or the base chain whose policy dropped it.
	By *Rule `json:"by,omitempty"`
	// Hook is the last hook where the packet was seen. If Within is true, the packet was lost
	// there; otherwise it was lost at the routing decision after that hook.
	Hook   string `json:"hook"`
	Within bool   `json:"within,omitzero"`
	// Routing is the reason why the kernel did not forward the packet, if it was lost at the
	// routing decision. The tracer asks the kernel for it afterwards. Empty means unknown.
	Routing string `json:"routing,omitzero"`
	// Full is the fill level of the conntrack table, such as "262144 of 262144", if the packet was
	// lost because conntrack could not add its connection to a full table.
	Full string `json:"full,omitzero"`
	// Do says what to do about Routing or Full, if that is known.
	Do string `json:"do,omitzero"`
	// Out is the interface through which the packet left.
	Out string `json:"out,omitempty"`
	// Answer is the path of the first answer. It is nil if no answer came in time, or if none is
	// possible.
	Answer *Trace `json:"answer,omitempty"`
}

// answered reports whether the tracer waited for an answer: the packet was delivered, or sent.
func (t *Trace) answered() bool { return t.Fate == Delivered || t.Fate == Sent }
