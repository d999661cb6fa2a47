package netnstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// defaultTimeout is the time after which a probe without an answer counts as dropped.
const defaultTimeout = 300 * time.Millisecond

// probesAtOnce limits the probes of one SendAll that run at the same time.
const probesAtOnce = 128

// Probe tests the fate of one packet: it sends a single TCP connection attempt, UDP datagram or
// SCTP INIT chunk.
type Probe struct {
	// From is the host that sends the packet.
	From *Host
	// Proto is TCP, UDP or SCTP.
	Proto servicemodel.Protocol
	// To is the destination.
	To netip.AddrPort
	// SourceAddr is the source address. The zero value means the address of From in To's family;
	// for a node, the kernel chooses the address.
	SourceAddr netip.Addr
	// SourcePort is the source port. 0 means a port that the last 50,000 probes of its protocol
	// from this namespace have not used, so that no probe reuses a conntrack entry.
	SourcePort uint16
	// Timeout is the time after which a probe without an answer is Dropped. 0 means 300 ms. An
	// established TCP connection is never Dropped: if the server does not greet it within seconds,
	// the probe Failed.
	Timeout time.Duration
}

// String returns text such as "udp from outside1 to 192.0.2.10:30053".
func (p Probe) String() string {
	name := "nowhere"
	if p.From != nil {
		name = p.From.Name
	}
	return fmt.Sprintf("%s from %s to %s", p.Proto, name, p.To)
}

// OutcomeKind is the kind of a probe's outcome.
type OutcomeKind string

// The outcomes of a probe.
const (
	// Failed: the probe could not be sent, or something other than a server of this package
	// answered.
	Failed OutcomeKind = "failed"
	// Answered: a server answered.
	Answered OutcomeKind = "answered"
	// Refused: TCP reset, SCTP ABORT, or ICMP port or protocol unreachable.
	Refused OutcomeKind = "refused"
	// Dropped: no answer.
	Dropped OutcomeKind = "dropped"
	// Unreachable: no route, or any other ICMP error, such as host unreachable or administratively
	// prohibited.
	Unreachable OutcomeKind = "unreachable"
)

// Outcome is the answer to a [Probe].
type Outcome struct {
	Kind OutcomeKind
	// Server is the name of the server that answered. Source is the source address and port that
	// the server saw. Both are set only for Answered.
	Server string
	Source netip.AddrPort
	// Local is the local address and port of the probe's socket.
	Local netip.AddrPort
	// ICMP is the ICMP error that made the outcome Refused or Unreachable. It is nil for a TCP
	// reset, an SCTP ABORT, or a missing route.
	ICMP *ICMPError
	// Err explains Failed, and Unreachable without ICMP.
	Err error
	// Took is the time from the first packet to the verdict.
	Took time.Duration
}

// ICMPError is an ICMP (RFC 792) or ICMPv6 (RFC 4443) error as a socket's error queue reports it.
type ICMPError struct {
	Type, Code uint8
	// From is the sender of the error.
	From netip.Addr
}

// PortUnreachable reports whether the error is the one that a rejecting rule or a closed UDP port
// sends: type 3 code 3, or in IPv6 type 1 code 4.
func (e *ICMPError) PortUnreachable() bool {
	if e.From.Is4() {
		return e.Type == 3 && e.Code == 3
	}
	return e.Type == 1 && e.Code == 4
}

// refuses reports whether the error says that nothing listens: protocol or port unreachable (RFC
// 792), in IPv6 port unreachable or unrecognised next header (RFC 4443).
func (e *ICMPError) refuses() bool {
	if e.From.Is4() {
		return e.Type == 3 && (e.Code == 2 || e.Code == 3)
	}
	return e.Type == 1 && e.Code == 4 || e.Type == 4 && e.Code == 1
}

// String returns the error in a few words.
func (e *ICMPError) String() string {
	name := "icmp"
	if e.From.Is6() {
		name = "icmpv6"
	}
	if e.PortUnreachable() {
		return fmt.Sprintf("%s port unreachable from %s", name, e.From)
	}
	return fmt.Sprintf("%s type %d code %d from %s", name, e.Type, e.Code, e.From)
}

// String returns the outcome in a few words, for messages: "answered by pod1 seeing
// 198.51.100.11:40000".
func (o Outcome) String() string {
	o.Kind = cmp.Or(o.Kind, Failed)
	switch {
	case o.Kind == Answered:
		return fmt.Sprintf("answered by %s seeing %s", o.Server, o.Source)
	case o.ICMP != nil:
		return fmt.Sprintf("%s by %s", o.Kind, o.ICMP)
	case o.Err != nil:
		return fmt.Sprintf("%s: %v", o.Kind, o.Err)
	}

	return string(o.Kind)
}

// Send sends the probe and waits for its outcome. If ctx ends, the wait ends, and the outcome is
// Failed. Send does not retry, but the kernel repeats a TCP SYN after a second.
//
// Time during which this process was too busy or did not run does not count towards the timeout, so
// on a slow machine probes are slow but correct. The wait never exceeds 100 times the timeout.
func (p Probe) Send(ctx context.Context) Outcome {
	start := time.Now()
	o := p.send(ctx)
	o.Kind = cmp.Or(o.Kind, Failed)
	o.Took = time.Since(start)
	return o
}

// SendAll sends many probes, a limited number at a time, and returns their outcomes in the same
// order.
func SendAll(ctx context.Context, probes []Probe) []Outcome {
	outcomes := make([]Outcome, len(probes))
	inParallel(len(probes), func(i int) { outcomes[i] = probes[i].Send(ctx) })
	return outcomes
}

// source returns the source address to bind to. The unspecified address leaves the choice to the
// kernel.
func (p Probe) source() netip.Addr {
	switch {
	case p.SourceAddr.IsValid():
		return p.SourceAddr
	case !p.From.anySource:
		return p.From.Addr(p.To.Addr())
	case p.To.Addr().Is4():
		return netip.IPv4Unspecified()
	}

	return netip.IPv6Unspecified()
}

func (p Probe) check() error {
	switch {
	case p.From == nil || p.From.NS == nil:
		return errors.New("probe: From: no host")
	case !p.Proto.Valid():
		return fmt.Errorf("probe: Proto: %s is not tcp, udp or sctp", p.Proto)
	case !p.To.IsValid() || p.To.Addr().Is4In6() || p.To.Port() == 0:
		return fmt.Errorf("probe: To: %s is not an address and port", p.To)
	case p.SourceAddr.IsValid() && p.SourceAddr.BitLen() != p.To.Addr().BitLen():
		return fmt.Errorf("probe: SourceAddr: %s is not of the family of %s", p.SourceAddr, p.To)
	}

	return nil
}

func answered(line string) Outcome {
	line = strings.TrimSuffix(line, "\n")
	end := strings.LastIndexByte(line, ' ') // names may have spaces
	seen, err := netip.ParseAddrPort(line[end+1:])
	if end < 0 || err != nil {
		return Outcome{Err: fmt.Errorf("the answer %q is not that of a server of this package",
			line)}
	}

	return Outcome{Kind: Answered, Server: line[:end], Source: seen}
}

// sourcePorts hands out the source ports of each protocol in turn.
type sourcePorts struct {
	mu   sync.Mutex
	used map[servicemodel.Protocol]int
}

// next returns a port outside the range that Kubernetes gives to NodePorts, 30000 to 32767.
func (s *sourcePorts) next(proto servicemodel.Protocol) uint16 {
	const low, lowEnd, high, highEnd = 10000, 30000, 32768, 65536
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		s.used = map[servicemodel.Protocol]int{}
	}
	n := s.used[proto]
	s.used[proto] = (n + 1) % (lowEnd - low + highEnd - high)
	if n < lowEnd-low {
		return uint16(low + n)
	}
	return uint16(high + n - (lowEnd - low))
}
