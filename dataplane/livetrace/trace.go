package livetrace

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config says what is followed, and where.
type Config struct {
	// NetNS names the network namespace to work in.
	NetNS netns.Namespace
	// Filter says which packets are followed.
	Filter Filter
	// Patience is the time that the tracer waits for the next event before a packet counts as lost,
	// and also the time that it waits for an answer. Zero means a second.
	Patience time.Duration
}

// Filter selects the packets to follow. Only packets that begin a connection are followed, as far
// as a packet shows that; TCP shows it by its flags.
type Filter struct {
	// Src is the source of the packets. The zero value means any source. SrcPort may be 0 for any.
	Src     netip.Addr
	SrcPort uint16
	// Dst is their destination before any translation.
	Dst netip.AddrPort
	// Protocol is TCP, UDP or SCTP.
	Protocol servicemodel.Protocol
	// InInterface is the name of the interface where the packets come in. Empty means any
	// interface, and also packets of the node itself, which have no such interface.
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

// Packet describes a packet at some place on its way.
type Packet struct {
	Src netip.AddrPort `json:"src"` // without ports in ICMP
	Dst netip.AddrPort `json:"dst"`
	// Protocol is the number of its protocol.
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

// Rule names a rule, or a base chain whose policy decides.
type Rule struct {
	Family string `json:"family"` // "ip", "ip6", "inet"
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Handle uint64 `json:"handle,omitzero"` // 0: the policy of the chain
	// Comment is the rule's comment. Text is its matches and statements, for people. Both are empty
	// if the rule had vanished when the tracer asked for it.
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

// Step is one step of a packet's way.
type Step struct {
	// Hook is the hook of the step: "prerouting", "input", "forward", "output" or "postrouting".
	Hook string `json:"hook"`
	// Rule is the rule that the packet matched, or the chain whose end it reached; nil if the
	// packet itself changed.
	Rule *Rule `json:"rule,omitempty"`
	// Verdict is the verdict of the rule or the policy: "accept", "drop", "jump services",
	// "continue".
	Verdict string `json:"verdict,omitempty"`
	// Packet is the packet from here on, if Rule is nil.
	Packet *Packet `json:"packet,omitempty"`
	// Taken means that something other than nf_tables, such as IPVS, removed the packet from the
	// hook and sent it on.
	Taken bool `json:"taken,omitzero"`
}

// Fate is the fate of a packet, in one word.
type Fate string

// The fates.
const (
	// Lost: no rule shows where. Routing lost it, or something other than nf_tables.
	Lost      Fate = "lost"
	Dropped   Fate = "dropped"   // by a rule, or by the policy of a chain
	Refused   Fate = "refused"   // by a rule that answers with a refusal
	Delivered Fate = "delivered" // to this node
	Sent      Fate = "sent"      // out by an interface
)

// Trace is the way of one packet.
type Trace struct {
	// Packet is the packet as it came in. In is the interface, empty if the node sent the packet.
	Packet Packet `json:"packet"`
	In     string `json:"in,omitempty"`
	Steps  []Step `json:"steps"`
	// Last is the packet as the last event showed it, translated or not.
	Last Packet `json:"last"`
	Fate Fate   `json:"fate"`
	// By is the rule that dropped or refused it, or the base chain whose policy dropped it.
	By *Rule `json:"by,omitempty"`
	// Hook is the last hook where the packet was seen. If Within is true, it was lost there;
	// otherwise it was lost after that hook, where the kernel routes.
	Hook   string `json:"hook"`
	Within bool   `json:"within,omitzero"`
	// Routing is the reason why the kernel does not send the packet on, if it was lost where the
	// kernel routes. The tracer asks for it afterwards. Empty means unknown.
	Routing string `json:"routing,omitzero"`
	// Full is the fill level of the conntrack table, if the packet was lost where conntrack adds
	// its connection and the table has no room: "262144 of 262144".
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
