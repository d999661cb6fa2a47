package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// judge compares the outcome of a probe with the wanted outcome. It returns the complaint, or "".
func (w *world) judge(p netnstest.Probe, want scenario.Want, got netnstest.Outcome) string {
	ok := false
	switch outcome := want.Outcome; {
	case w.under.Proxy:
		ok = w.proxyDid(p, want, got)
	case outcome == servicemodel.Balanced:
		ok = got.Kind == netnstest.Answered && slices.Contains(want.Servers, got.Server) &&
			w.saw(want, got)
	case outcome == servicemodel.Rejected && want.Reset && p.Proto == servicemodel.TCP:
		ok = got.Kind == netnstest.Refused && got.ICMP == nil
	case outcome == servicemodel.Rejected:
		ok = got.Kind == netnstest.Refused && got.ICMP != nil && got.ICMP.PortUnreachable()
	case outcome == servicemodel.Dropped:
		ok = got.Kind == netnstest.Dropped
	case outcome == servicemodel.Untouched:
		ok = w.untouched(p, got)
	}

	if ok {
		return ""
	}
	return fmt.Sprintf("%s: wanted %s, got %s", p, want, got)
}

// saw reports whether the server that answered saw the right source.
func (w *world) saw(want scenario.Want, got netnstest.Outcome) bool {
	src := got.Source.Addr()
	switch own := src == got.Local.Addr(); {
	case want.Masquerade == scenario.OwnSource, want.Masquerade == scenario.AnySource && own:
		return own
	case want.Source.IsValid():
		return src == want.Source
	}

	return want.Masquerade == scenario.AnySource || w.IsNodeAddr(src)
}

// untouched reports whether the packet had the same fate as without kernlb: it arrived unchanged at
// the host that has the address, or at the internet.
func (w *world) untouched(p netnstest.Probe, got netnstest.Outcome) bool {
	dst := p.To.Addr()
	if w.IsNodeAddr(dst) || dst.IsLoopback() {
		server := serverName(w.Node.Name, p.To.Port())
		return got.Kind == netnstest.Refused || got.Kind == netnstest.Answered &&
			got.Server == server || got.Kind == netnstest.Dropped && p.Proto == servicemodel.SCTP
	}

	server := netnstest.Net.Internet
	for _, h := range w.Hosts() {
		if dst == h.IPv4 || dst == h.IPv6 {
			server = serverName(h.Name, p.To.Port())
		}
	}

	return got.Kind == netnstest.Answered && got.Server == server &&
		got.Source.Addr() == got.Local.Addr()
}

// oracle returns the outcome that the table demands for a probe. src is the source of the probe's
// packets.
func (w *world) oracle(t *servicemodel.Table, p netnstest.Probe, src netip.AddrPort) (scenario.Want,
	servicemodel.Trace) {
	trace := t.Trace(w.packet(p, src), servicemodel.Locality(w.NodeAddrs()))
	d := &trace.Decision
	want, answer := scenario.Want{Outcome: d.Outcome}, t.Rules().NoEndpoints
	if d.Cause.Kind == "source" {
		answer = t.Rules().Forbidden
	}
	want.Reset = answer == "reset" && d.Cause.Kind != "other-port"
	for i, c := range d.Candidates {
		want.Servers = append(want.Servers, w.serverOf(c.Endpoint))
		m := scenario.OwnSource
		want.Source = c.MasqueradeIP
		if c.Masquerade {
			m = scenario.NodeSource
		}
		if i > 0 && m != want.Masquerade {
			m = scenario.AnySource
		}
		want.Masquerade = m
	}

	return want, trace
}

// judgeTrace compares the words in the steps of a trace with the outcome of the packet, which has
// been judged before.
func (w *world) judgeTrace(t *servicemodel.Trace, got netnstest.Outcome) string {
	d, sees := &t.Decision, ""
	for _, s := range t.Steps {
		if s.Kind == "masquerade" {
			sees = s.Text
		}
	}

	last := t.Steps[len(t.Steps)-1]
	src, node := got.Source.Addr(), strings.HasPrefix(sees, "the endpoint sees an address of this")
	switch {
	case last.Kind != "outcome" || !strings.HasPrefix(last.Text, string(d.Outcome)),
		d.Outcome != servicemodel.Balanced && sees != "":
		return "the trace contradicts its decision"
	case d.Outcome != servicemodel.Balanced, w.under.Proxy && sees != "":
		return "" // the source that a proxy's endpoints see has been judged
	case sees == "",
		node && !w.IsNodeAddr(src) && !w.hostEndpoint(d, got.Server),
		!node && src != got.Local.Addr() && !strings.Contains(sees, "but for itself") &&
			!strings.HasPrefix(sees, fmt.Sprintf("the endpoint sees %v: ", src)):
		return fmt.Sprintf("the trace says %q, the endpoint saw %v", sees, src)
	}

	return ""
}

// hostEndpoint reports whether the server that answered is in the host's network.
func (w *world) hostEndpoint(d *servicemodel.Decision, server string) bool {
	return slices.ContainsFunc(d.Candidates, func(c servicemodel.Candidate) bool {
		return w.serverOf(c.Endpoint) == server && w.IsNodeAddr(c.Endpoint.Addr())
	})
}

// judgeOracle compares the outcome of a probe with the oracle, and with the words of a trace. If
// only some candidates are masqueraded (such as a hairpin), it judges by the candidate that
// answered.
func (w *world) judgeOracle(t *servicemodel.Table, p netnstest.Probe,
	got netnstest.Outcome) string {
	src := got.Local
	if !src.IsValid() {
		src = netip.AddrPortFrom(p.From.Addr(p.To.Addr()), p.SourcePort)
	}
	want, trace := w.oracle(t, p, src)
	for _, c := range trace.Decision.Candidates {
		switch isServer := w.serverOf(c.Endpoint) == got.Server; {
		case isServer && !c.Masquerade:
			want.Masquerade = scenario.OwnSource
		case isServer && w.IsNodeAddr(c.Endpoint.Addr()):
			// packets from outside to the host's network do not pass the postrouting hook, which
			// masquerades
			want.Masquerade = scenario.AnySource
		case isServer:
			want.Masquerade, want.Source = scenario.NodeSource, c.MasqueradeIP
		}
	}

	s := w.judge(p, want, got)
	if s == "" {
		s = w.judgeTrace(&trace, got)
	}
	if s != "" {
		return fmt.Sprintf("%s\n\tthe oracle: %v\n%v", s, trace.Decision, trace)
	}
	return ""
}
