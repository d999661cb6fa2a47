package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
)

// chain judges a chain of another program. A finding is an error only if the text of the rules
// proves that they drop packets. For other rules, use kernlb diagnose, which sends packets.
func (f *facts) chain(c hooks.Chain, u *use, add adder) {
	for _, family := range families {
		concerned := u.remote[family]
		if c.Hook == hooks.Input {
			concerned = u.local[family]
		}
		if !concerned || !c.Sees(family) || c.Hook == hooks.Output {
			continue
		}
		r, certain := dropsAll(c)
		if certain {
			add(ForeignChains, Error, "accept the packets of services in this chain, see "+
				"docs/sharing.md; kernlb diagnose shows what happens to one", "another program "+
				"drops every new connection at the hook %s (%v%s): clients reach no endpoint",
				c.Hook, c, r)
			return
		}

		if c.DropsByDefault {
			add(ForeignChains, Note, "kernlb diagnose shows whether it accepts a connection",
				"another program drops at the hook %s what none of its rules accepts (%v)", c.Hook,
				c)
			return
		}
	}

	for _, r := range c.Drops {
		if hit := dropped(r, c, u.targets); hit != "" {
			severity := Warning // a rule before it may accept the packets
			if !c.Accepts {
				severity = Error
			}
			add(ForeignChains, severity, fmt.Sprintf("nft delete rule %s %s %s handle %d, or "+
				"except services from it; kernlb diagnose shows what happens to a connection",
				c.Family, c.Table, r.Chain, r.Handle), "another program drops connections "+
				"to the endpoint %s at the hook %s (%s %s %v)", hit, c.Hook, c.Family, c.Table, r)
		}
	}
}

// dropsAll reports whether a chain drops every new connection. It returns the rule that does so, as
// the end of a message; the text is empty if it is the policy.
func dropsAll(c hooks.Chain) (rule string, ok bool) {
	if c.Accepts {
		return "", false
	}
	for _, r := range c.Drops {
		if m, known := parseRule(r.Text); known && m == (matches{}) && r.Chain == c.Name {
			return ", handle " + strconv.FormatUint(r.Handle, 10), true
		}
	}

	return ", its policy", c.DropsByDefault
}

// dropped names the endpoints whose connections a rule drops completely. It returns "" if there are
// no such endpoints.
func dropped(r hooks.Rule, c hooks.Chain, targets []target) (text string) {
	m, known := parseRule(r.Text)
	if !known || m == (matches{}) || c.Hook != hooks.Forward && c.Hook != hooks.Postrouting {
		return ""
	}
	var last netip.AddrPort
	others := 0
	for _, t := range targets {
		switch {
		case t.endpoint == last || !m.match(t) || !c.Sees(servicemodel.FamilyOf(t.endpoint.Addr())):
			continue
		case text != "":
			others++
		case t.endpoint.Port() == 0:
			text = t.endpoint.Addr().String() + " (any port)"
		default:
			text = t.endpoint.String()
		}

		last = t.endpoint
	}

	switch others {
	case 0:
		return text
	case 1:
		return text + " and 1 other"
	}

	return fmt.Sprintf("%s and %d others", text, others)
}

// matches are the conditions of a rule about the destination of a packet.
type matches struct {
	protocol    servicemodel.Protocol
	first, last uint16       // ports; 0: any
	to          netip.Prefix // invalid: any
}

func (m matches) match(t target) bool {
	port := t.endpoint.Port()
	return (m.protocol == 0 || m.protocol == t.protocol) &&
		(m.last == 0 || m.first <= port && port <= m.last) &&
		(!m.to.IsValid() || m.to.Contains(t.endpoint.Addr()))
}

// parseRule reads a rule as package hooks writes it. It understands only rules that drop by the
// destination alone; known is false for all other rules.
func parseRule(text string) (m matches, known bool) {
	words := strings.Fields(text)
	for len(words) > 0 {
		used := 0
		switch word, next := words[0], at(words, 1); word {
		case "counter":
			used = 1
		case "drop", "reject":
			return m, true
		case "-j":
			return m, next == "DROP" || next == "REJECT"
		case "ct":
			if next == "state" && slices.Contains(strings.Split(at(words, 2), ","), "new") {
				used = 3
			}
		case "ip", "ip6":
			if p, ok := prefix(at(words, 2)); ok && next == "daddr" {
				m.to, used = p, 3
			}
		case "tcp", "udp", "sctp":
			if next == "dport" && m.setPort(word, at(words, 2)) {
				used = 3
			}
		case "meta":
			if next == "l4proto" && m.protocol.UnmarshalText([]byte(at(words, 2))) == nil {
				used = 3
			}
		}

		if used == 0 || used > len(words) {
			return m, false
		}
		words = words[used:]
	}

	return m, false
}

// at returns the i-th word, or "" beyond the end.
func at(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return ""
}

func prefix(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p, err == nil
}

// setPort reads a port or a range.
func (m *matches) setPort(protocol, text string) bool {
	low, high, ranged := strings.Cut(text, "-")
	if !ranged {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	m.first, m.last = uint16(first), uint16(last)
	return err == nil && err2 == nil && m.protocol.UnmarshalText([]byte(protocol)) == nil
}
