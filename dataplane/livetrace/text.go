package livetrace

import (
	"fmt"
	"strings"
)

// String describes the trace, one line per step.
func (t *Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", t.Packet)
	t.write(&b)
	if !t.answered() {
		return b.String()
	}
	switch a := t.Answer; {
	case a == nil:
		line(&b, "answer", "none was seen")
	default:
		line(&b, "answer", a.Packet.String())
		a.write(&b)
	}

	return b.String()
}

func line(b *strings.Builder, what, text string) { fmt.Fprintf(b, "  %-12s %s\n", what, text) }

// write writes the steps and the outcome.
func (t *Trace) write(b *strings.Builder) {
	hook := ""
	if t.In != "" {
		line(b, "in", t.In)
	}
	for _, s := range t.Steps {
		text := s.text()
		if text == "" {
			continue
		}
		if s.Hook == hook {
			line(b, "", text)
			continue
		}

		hook = s.Hook
		line(b, hook, text)
	}

	line(b, "outcome", t.outcome())
	if t.Do != "" {
		line(b, "do", t.Do)
	}
}

// text describes a step. It is empty if the chain had no rule for the packet.
func (s *Step) text() string {
	switch {
	case s.Taken:
		return "taken here by something that is no rule of nf_tables, and sent on: IPVS, or a " +
			"program like it"
	case s.Rule == nil:
		return fmt.Sprintf("it now goes from %s to %s", place(s.Packet.Src), place(s.Packet.Dst))
	case s.Rule.Handle == 0 && s.Verdict == "accept":
		return ""
	}

	text := s.Rule.Text
	if text == "" || s.Rule.Handle == 0 {
		text = s.Verdict
	}
	return fmt.Sprintf("%v: %s", *s.Rule, text)
}

// outcome says what happened to the packet, and names the rule or the cause.
func (t *Trace) outcome() string {
	switch t.Fate {
	case Dropped, Refused:
		return fmt.Sprintf("%v by %v", t.Fate, *t.By)
	case Delivered:
		return fmt.Sprintf("delivered to %s on this node", place(t.Last.Dst))
	case Sent:
		return fmt.Sprintf("sent by %s to %s", t.Out, place(t.Last.Dst))
	}

	if t.Full != "" {
		return fmt.Sprintf("lost in %s: the table of connections is full (%s), and the kernel "+
			"drops new connections", t.Hook, t.Full)
	}
	if t.Within {
		return fmt.Sprintf("lost in %s, by something that is no rule of nf_tables: "+
			"iptables-legacy, IPVS, a program of BPF, a process that a rule queued it to", t.Hook)
	}

	if t.Routing != "" {
		return fmt.Sprintf("dropped at the routing decision after %s: %s", t.Hook,
			t.Routing)
	}

	return fmt.Sprintf("dropped at the routing decision after %s; there is a route to %v, "+
		"so its size, its TTL or a program of BPF may be the cause", t.Hook, t.Last.Dst.Addr())
}

// Summary says in one sentence what happened to the packet, for people who ask why a connection
// fails. ours returns true for rules of kernlb.
func (t *Trace) Summary(ours func(Rule) bool) string {
	if t.By != nil {
		return by(t, ours) + " it"
	}
	if !t.answered() {
		return "it is " + t.outcome()
	}
	server := place(t.Last.Dst)
	switch a := t.Answer; {
	case a == nil:
		return "no answer of " + server + " was seen: it does not answer, or its answers do not " +
			"come through this node"
	case a.By != nil:
		return by(a, ours) + " the answer of " + server
	case !a.answered():
		return "the answer of " + server + " is " + a.outcome()
	case a.Packet.Kind == "unreachable":
		return place(a.Packet.Src) + " says that " + server + " is unreachable: nothing listens " +
			"there, or it cannot be reached"
	case a.Packet.refusal():
		return server + " refuses: nothing listens there"
	}

	return "it works: " + server + " answers"
}

// Works reports whether the packet arrived, and an answer other than a refusal came back.
func (t *Trace) Works() bool {
	return t.answered() && t.Answer != nil && t.Answer.answered() && !t.Answer.Packet.refusal()
}

// by names the rule that ended the path of a packet, and the program that the rule belongs to.
func by(t *Trace, ours func(Rule) bool) string {
	verb := "drops"
	if t.Fate == Refused {
		verb = "refuses"
	}
	if ours(*t.By) {
		return fmt.Sprintf("kernlb (%v) %s", *t.By, verb)
	}
	return fmt.Sprintf("another program (%v) %s", *t.By, verb)
}
