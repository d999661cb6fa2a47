package iptables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// text returns r as the iptables-save of a family prints it.
func (r *rule) text(f servicemodel.Family) string {
	var b strings.Builder
	r.appendText(&b, f)
	return strings.TrimPrefix(b.String(), " ")
}

func word(b *strings.Builder, not bool, words ...string) {
	if not {
		b.WriteString(" !")
	}
	for _, w := range words {
		b.WriteByte(' ')
		b.WriteString(w)
	}
}

// appendText appends r as the iptables-save of a family prints it, without the "-A chain" in front.
func (r *rule) appendText(b *strings.Builder, f servicemodel.Family) {
	if r.opaque {
		b.WriteString(" (a rule that is not understood)")
		return
	}

	if r.src.IsValid() {
		word(b, r.notSrc, "-s", r.src.String())
	}
	if r.dst.IsValid() {
		word(b, r.notDst, "-d", r.dst.String())
	}
	if r.in != "" {
		word(b, r.notIn, "-i", r.in)
	}
	if r.proto != 0 {
		word(b, false, "-p", r.proto.String())
	}
	r.appendMatches(b, f)
	r.appendTarget(b, f)
}

func (r *rule) appendMatches(b *strings.Builder, f servicemodel.Family) {
	if !r.ports.any() {
		word(b, false, "-m", r.proto.String(), "--dport", r.ports.String())
	}
	if r.mark.mask != 0 {
		word(b, false, "-m mark")
		word(b, r.mark.not, "--mark", fmt.Sprintf("0x%x/0x%x", r.mark.value, r.mark.mask))
	}

	if r.srcLocal || r.dstLocal {
		word(b, false, "-m addrtype")
		if r.srcLocal {
			word(b, false, "--src-type LOCAL")
		}
		if r.dstLocal {
			word(b, false, "--dst-type LOCAL")
		}
	}

	if r.state.states != 0 {
		word(b, false, "-m conntrack")
		word(b, r.state.not, "--ctstate", r.state.states.String())
	}

	switch r.stat.kind {
	case statRandom:
		fmt.Fprintf(b, " -m statistic --mode random --probability %.11f",
			float64(r.stat.prob)/certain)
	case statNth:
		fmt.Fprintf(b, " -m statistic --mode nth --every %d --packet %d", r.stat.every,
			r.stat.packet)
	case statHash:
		fmt.Fprintf(b, ` -m bpf --bytecode "%s"`, bytecode(hashProgram(f, r.stat)))
	}

	r.appendRecent(b, f)
	if r.comment != "" {
		word(b, false, "-m comment --comment", quote(r.comment))
	}
}

func (r *rule) appendRecent(b *strings.Builder, f servicemodel.Family) {
	switch r.recent.kind {
	case recentSet:
		word(b, false, "-m recent --set")
	case recentUpdate:
		fmt.Fprintf(b, " -m recent --update --seconds %d --reap", r.recent.seconds)
	default:
		return
	}

	bits := 32
	if f == servicemodel.IPv6 {
		bits = 128
	}
	mask, _ := netip.AddrFromSlice(r.recent.mask(bits))
	word(b, false, "--name", r.recent.name, "--mask", mask.String(), "--rsource")
}

func (r *rule) appendTarget(b *strings.Builder, f servicemodel.Family) {
	switch r.target {
	case targetNone:
	case targetJump, targetGoto:
		word(b, false, verdicts[r.target].text, r.chain)
	case targetReject:
		icmp := "icmp"
		if f == servicemodel.IPv6 {
			icmp = "icmp6"
		}
		word(b, false, "-j REJECT --reject-with", icmp+"-port-unreachable")
	case targetReset:
		word(b, false, "-j REJECT --reject-with tcp-reset")
	case targetDNAT:
		word(b, false, "-j DNAT --to-destination", servicemodel.TargetText(r.to))
		if !r.shift.any() {
			fmt.Fprintf(b, "-%d/%d", r.lastTarget(), r.shift.from)
		}
	case targetMasquerade:
		word(b, false, "-j MASQUERADE --random-fully")
	case targetMark:
		fmt.Fprintf(b, " -j MARK --set-xmark 0x%x/0x%x", r.set.value, r.set.mask)
	default:
		word(b, false, verdicts[r.target].text)
	}
}

// String returns "80" or "1024:2047".
func (r portRange) String() string {
	if r.from == r.to {
		return fmt.Sprint(r.from)
	}
	return fmt.Sprintf("%d:%d", r.from, r.to)
}

// String returns the states in the order in which iptables-save lists them.
func (s ctState) String() string {
	names := []struct {
		bit  ctState
		name string
	}{
		{ctInvalid, "INVALID"}, {ctNew, "NEW"}, {ctRelated, "RELATED"},
		{ctEstablished, "ESTABLISHED"},
		{ctUntracked, "UNTRACKED"}, {ctSNAT, "SNAT"}, {ctDNAT, "DNAT"},
	}
	var l []string
	for _, n := range names {
		if s&n.bit != 0 {
			l = append(l, n.name)
		}
	}

	return strings.Join(l, ",")
}

// quote quotes a string like iptables-save (xtables_save_string in libxtables/xtables.c).
func quote(s string) string {
	if s != "" && strings.Trim(s, rendering.Letters+rendering.Digits+"_-") == "" {
		return s
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(s) + `"`
}

// toolName is the name of a family's iptables.
func toolName(f servicemodel.Family) string {
	if f == servicemodel.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}
