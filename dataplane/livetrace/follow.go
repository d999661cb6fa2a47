package livetrace

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The names of the chains in the tracer's table are a hook, a dash and one of these.
const (
	chainFirst   = "first"
	chainAnswers = "answers"
	chainLast    = "last"
)

// follower builds traces from the events of the first packet that matches, and of its answer.
type follower struct {
	table           string // the tracer's own
	request, answer *walk
}

// walk is the path of a packet.
type walk struct {
	Trace
	id     uint32
	in     uint32 // indices of interfaces
	out    uint32
	looped bool // it left by the loopback interface, from where it comes back with another number
	over   bool
}

// event adds an event of a table of a family to a trace. It reports whether the event belongs to
// the traced packet or its answer.
func (f *follower) event(family uint8, e *nft.TraceInfo) bool {
	hook, place := "", ""
	if e.Table == f.table {
		hook, place, _ = strings.Cut(e.Chain, "-")
	}
	w := f.walkOf(e, hook, place)
	if w == nil {
		return false
	}
	p, first := packetOf(e)
	if first {
		w.see(p)
	}
	switch {
	case place == chainFirst, place == chainAnswers:
		w.enter(hook)
	case place == chainLast && first: // further events of the chain do not have the interface
		w.leave(hook, e)
	case place == "":
		w.rule(family, e)
	}

	return true
}

// walkOf returns the walk to which an event belongs, and starts a walk if the packet is new. Only
// the rule that enables tracing starts a walk of the request: packets of earlier connections, and
// their answers, still generate events elsewhere.
func (f *follower) walkOf(e *nft.TraceInfo, hook, place string) *walk {
	for _, w := range []*walk{f.request, f.answer} {
		if w != nil && !w.over && w.has(e, hook, place) {
			return w
		}
	}

	p, ok := packetOf(e)
	if !ok || e.Type != nft.TraceRule {
		return nil
	}
	w := &walk{id: e.ID, in: e.In, Trace: Trace{Packet: p, Last: p, Steps: []Step{},
		Fate: Lost}}
	switch {
	case place == chainFirst && e.Handle != 0 && f.request == nil:
		f.request = w
	case place == chainAnswers && f.isAnswer(p):
		f.answer = w
	default:
		return nil
	}

	return w
}

// has reports whether an event belongs to the packet. The number of a trace depends on the
// interface, so it changes on loopback, and on a bridge whose packets pass prerouting at the port.
func (w *walk) has(e *nft.TraceInfo, hook, place string) bool {
	if w.id == e.ID {
		return true
	}
	bridged := w.Hook == "prerouting" && !w.Within && (hook == "forward" || hook == "input")
	if p, ok := packetOf(e); !ok || !w.looped && !bridged || place != chainFirst || p != w.Last {
		return false
	}
	w.id, w.looped = e.ID, false
	return true
}

// isAnswer reports whether p is the first answer to the traced packet. Any machine on the path may
// send an ICMP error.
func (f *follower) isAnswer(p Packet) bool {
	if f.answer != nil || f.request == nil || !f.request.over || !f.request.answered() {
		return false
	}
	to := f.request.Last
	if p.Protocol == protocolICMP || p.Protocol == protocolICMPv6 {
		return p.Dst.Addr() == to.Src.Addr()
	}
	return p.Src == to.Dst && p.Dst == to.Src
}

// see records the packet as it is now.
func (w *walk) see(p Packet) {
	if p == w.Last {
		return
	}
	w.Last = p
	w.Steps = append(w.Steps, Step{Hook: w.Hook, Packet: &p})
}

// enter records that the packet entered a hook.
func (w *walk) enter(hook string) {
	if w.Within && w.Hook != hook { // the end of the last hook was not reached
		w.Steps = append(w.Steps, Step{Hook: w.Hook, Taken: true})
	}
	w.Hook, w.Within = hook, true
}

// leave records that the packet passed a hook.
func (w *walk) leave(hook string, e *nft.TraceInfo) {
	w.Hook, w.Within = hook, false
	switch {
	case hook == "input":
		w.Fate, w.over = Delivered, true
	case hook == "postrouting" && e.Out == loopback:
		w.looped = true
	case hook == "postrouting":
		w.Fate, w.out, w.over = Sent, e.Out, true
	}
}

// loopback is the index of the loopback interface in every network namespace.
const loopback = 1

// rule records the verdict of a rule, or of the policy of a chain.
func (w *walk) rule(family uint8, e *nft.TraceInfo) {
	name := cmp.Or(families[family], fmt.Sprint("family ", family))
	r := &Rule{Family: name, Table: e.Table, Chain: e.Chain, family: family}
	code := e.Verdict
	switch {
	case e.Type == nft.TracePolicy:
		code = e.Policy
	case e.Handle != 0:
		r.Handle = e.Handle
	default: // the end of the rules of a chain
		return
	}

	w.Steps = append(w.Steps, Step{Hook: w.Hook, Rule: r,
		Verdict: nft.VerdictText(code, e.ToChain)})
	if code&nft.VerdictMask == nft.VerdictDrop && code >= 0 {
		w.Fate, w.By, w.over = Dropped, r, true
	}
}

// families are the families of tables that see packets of IP, by the numbers of the kernel
// (NFPROTO_*, include/uapi/linux/netfilter.h).
var families = map[uint8]string{1: "inet", 2: "ip", 7: "bridge", 10: "ip6"}

const (
	protocolICMP   servicemodel.Protocol = 1
	protocolICMPv6 servicemodel.Protocol = 58
)

// packetOf reads the headers of an event, if it contains headers.
func packetOf(e *nft.TraceInfo) (Packet, bool) {
	var p Packet
	var src, dst netip.Addr
	switch n := e.Network; {
	case len(n) >= 20 && n[0]>>4 == 4:
		src, dst = addrOf(n[12:16]), addrOf(n[16:20])
		p.Protocol = servicemodel.Protocol(n[9])
	case len(n) >= 40 && n[0]>>4 == 6:
		src, dst = addrOf(n[8:24]), addrOf(n[24:40])
		p.Protocol = servicemodel.Protocol(n[6])
	default:
		return p, false
	}

	t := e.Transport
	if p.Protocol.Valid() && len(t) >= 4 {
		p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(t))
		p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(t[2:]))
	} else {
		p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	}

	p.Kind = kindOf(p.Protocol, t)
	return p, true
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// kindOf returns the kind of a packet from its transport header.
func kindOf(protocol servicemodel.Protocol, t []byte) string {
	switch {
	case protocol == servicemodel.TCP && len(t) > 13:
		var names []string
		for i, name := range [...]string{"fin", "syn", "rst", "", "ack"} {
			if name != "" && t[13]&(1<<i) != 0 {
				names = append(names, name)
			}
		}

		return strings.Join(names, "-")
	case protocol == servicemodel.SCTP && len(t) > 12:
		return map[byte]string{1: "init", 2: "init-ack", 6: "abort"}[t[12]]
	case protocol == protocolICMP && len(t) > 0 && t[0] == 3,
		protocol == protocolICMPv6 && len(t) > 0 && t[0] == 1:
		return "unreachable"
	}

	return ""
}

// done reports whether the trace is complete: the paths of the packet and, if there can be an
// answer, of the answer have ended.
func (f *follower) done() bool {
	return f.request != nil && f.request.over &&
		(!f.request.answered() || f.answer != nil && f.answer.over)
}
