package servicemodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// String returns the change set as text, one line for each change: "+" added, "~" changed, "-"
// removed. If New was resolved from a state, the line of a frontend that rejects or drops states
// the reason. The same change set always gives the same text. An empty change set gives no text.
func (c *ChangeSet) String() string {
	var b strings.Builder
	c = c.orEmpty()
	if c.Rules != nil {
		line(&b, '~',
			"rules: "+strings.Join(changedFields(c.Rules.Old.fields(), c.Rules.New.fields()), "; "))
	}

	for _, f := range c.Frontends {
		why := ""
		if f.New != nil && c.New.remembers() {
			if cause := c.New.Cause(f.New); cause.Kind != "" {
				why = "; because " + cause.String()
			}
		}

		changeText(&b, "frontend", f, (*Frontend).String, why, func(old, new *Frontend) {
			line(&b, '~', "frontend "+new.title()+": "+strings.Join(
				changedFields(old.fields(), new.fields()), "; ")+why)
		})
	}

	for _, p := range c.Pools {
		changeText(&b, "pool", p, (*Pool).String, "", func(old, new *Pool) {
			title := "pool " + new.ID.String() + ": "
			if changed := changedFields(old.fields(), new.fields()); len(changed) > 0 {
				line(&b, '~', title+strings.Join(changed, "; "))
			}
			for s := range new.SlotsSince(old) {
				line(&b, '~', fmt.Sprintf("%sslot %d: %v -> %v", title, s.Index, s.Old, s.New))
			}
		})
	}

	addrsText(&b, "cluster-ip ", c.ClusterIPs)
	addrsText(&b, "hairpin ", c.Hairpins)
	for _, h := range c.Health {
		changeText(&b, "health-check", h, (*HealthCheck).text, "", func(old, new *HealthCheck) {
			line(&b, '~', "health-check "+old.text()+" -> "+new.text())
		})
	}

	return b.String()
}

// changeText writes a line for an object that was added, with the reason, or removed. For an object
// that differs it calls changed.
func changeText[T any](b *strings.Builder, kind string, c Change[T], text func(*T) string,
	why string, changed func(old, new *T)) {
	switch {
	case c.Old == nil:
		line(b, '+', kind+" "+text(c.New)+why)
	case c.New == nil:
		line(b, '-', kind+" "+text(c.Old))
	default:
		changed(c.Old, c.New)
	}
}

func line(b *strings.Builder, sign byte, text string) { fmt.Fprintf(b, "%c %s\n", sign, text) }

func addrsText(b *strings.Builder, kind string, changes []AddrChange) {
	for _, a := range changes {
		sign := byte('-')
		if a.Added {
			sign = '+'
		}
		line(b, sign, kind+a.Addr.String())
	}
}

// String returns "10.0.1.7:8080", "10.0.1.7:8080 weight 3", "10.0.1.7" for an endpoint at which
// packets keep their ports, or "none".
func (s Slot) String() string {
	switch {
	case !s.Endpoint.IsValid():
		return "none"
	case s.Weight != 1:
		return TargetText(s.Endpoint) + " weight " + uitoa(s.Weight)
	}

	return TargetText(s.Endpoint)
}

// text returns "default/web port 32000: local endpoints 2 IPv4, 1 IPv6". It leaves out families
// in which the service does not exist.
func (h *HealthCheck) text() string {
	var counts []string
	if h.IPv4 != NotServed {
		counts = append(counts, fmt.Sprintf("%d IPv4", h.IPv4))
	}
	if h.IPv6 != NotServed {
		counts = append(counts, fmt.Sprintf("%d IPv6", h.IPv6))
	}
	return fmt.Sprintf("%v port %d: local endpoints %s", h.Service, h.Port,
		strings.Join(counts, ", "))
}

// String returns all of f in one line, such as "10.96.0.10:53/udp kube-system/dns:dns cluster-ip ->
// cluster; masquerade host,outside".
func (f *Frontend) String() string {
	s := f.title() + " -> " + f.verdicts()
	for _, field := range f.fields()[3:] {
		if field.value != "" && field.value != "none" {
			s += "; " + field.name + " " + field.value
		}
	}

	return s
}

func (f *Frontend) title() string {
	return f.Key.String() + " " + f.Service.String() + " " + f.Kind.String()
}

func (f *Frontend) verdicts() string {
	if f.Internal == f.External {
		return f.Internal.String()
	}
	return f.Internal.String() + ", from outside " + f.External.String()
}

// String returns all of p in one line, such as "default/web:http/tcp IPv4 cluster: 10.0.1.7:8080,
// 10.0.2.9:8080 weight 3".
func (p *Pool) String() string {
	s := p.ID.String()
	for _, field := range p.fields() {
		if field.value != "default" && field.value != "nat" {
			s += " " + field.name + " " + field.value
		}
	}

	for i, slot := range p.Slots {
		if i == 0 {
			s += ": "
		} else {
			s += ", "
		}

		s += slot.String()
	}

	return s
}

type field struct{ name, value string }

// changedFields returns the fields that differ, as "name: old -> new". Both lists have the same
// fields.
func changedFields(old, new []field) []string {
	var changed []string
	for i := range new {
		if old[i] != new[i] {
			changed = append(changed, new[i].name+" "+orNone(old[i].value)+" -> "+orNone(
				new[i].value))
		}
	}

	return changed
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (f *Frontend) fields() []field {
	return []field{
		{"service", f.Service.String()},
		{"kind", f.Kind.String()},
		{"verdict", f.verdicts()},
		{"endpoint ports", f.shiftedText()},
		{"masquerade", f.masqueradeText()},
		{"affinity", f.affinityText()},
		{"sources", prefixesText(f.Sources)},
	}
}

func (p *Pool) fields() []field {
	return []field{{"scheduler", cmp.Or(string(p.Scheduler), "default")},
		{"forwarding", cmp.Or(string(p.Forwarding), "nat")}}
}

func (r Rules) fields() []field {
	return []field{
		{"masquerade mark", markText(r.MasqueradeMark)},
		{"families", r.OnlyFamily.only()},
		{"pods", r.LocalPods.text()},
		{"node ports", prefixesText(r.NodePorts)},
		{"service CIDRs", prefixesText(r.ServiceCIDRs)},
		{"localhost node ports", fmt.Sprint(r.LocalhostNodePorts)},
		{"masquerade neighbours", fmt.Sprint(r.MasqueradeNeighbours)},
		{"no endpoints", cmp.Or(r.NoEndpoints, answerReject)},
		{"forbidden", cmp.Or(r.Forbidden, answerDrop)},
	}
}

// markText names a mark. The backend chooses the default.
func markText(mark uint32) string {
	switch mark {
	case 0:
		return ""
	case DefaultMasqueradeMark:
		return "default"
	}

	return fmt.Sprintf("%#x", mark)
}

// only names the families that a node serves.
func (f Family) only() string {
	if f == 0 {
		return "both"
	}
	return f.String() + " only"
}

func (d PodDetector) text() string {
	switch {
	case d.Bridge != "":
		return "bridge " + d.Bridge
	case d.InterfacePrefix != "":
		return "interfaces " + d.InterfacePrefix + "*"
	}

	return prefixesText(d.CIDRs)
}

func (f *Frontend) shiftedText() string {
	if f.Shifted {
		return "shifted"
	}
	return ""
}

// affinityText is the text of the session affinity of f, such as "3h0m0s by /24 for the service".
func (f *Frontend) affinityText() string {
	if f.Affinity == 0 {
		return ""
	}
	text := f.Affinity.String()
	if f.AffinityBits != 0 {
		text += " by /" + uitoa(uint16(f.AffinityBits))
	}
	if f.AffinityService {
		text += " for the service"
	}
	return text
}

// masqueradeText is the text of the masqueraded origins of f, such as "none (never)", with the
// policy of the service, if any.
func (f *Frontend) masqueradeText() string {
	s := f.Masquerade.String()
	if f.MasqueradePolicy != MasqueradeDefault {
		s += " (" + string(f.MasqueradePolicy) + ")"
	}
	if f.MasqueradeIP.IsValid() {
		s += " as " + f.MasqueradeIP.String()
	}
	return s
}

func prefixesText(list []netip.Prefix) string { return strings.Join(prefixTexts(list), ", ") }

func prefixTexts(list []netip.Prefix) []string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return texts
}
