package servicemodel

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// String returns the change set as text, one line for each change: "+" added, "~" changed, "-"
// removed. If New was resolved from a state, a line says why its frontend rejects or drops. The
// same change set always gives the same text; an empty one gives none.
func (c *ChangeSet) String() string {
	var b strings.Builder
	if c.Rules != nil {
		line(&b, '~',
			"rules: "+strings.Join(changedFields(c.Rules.Old.fields(), c.Rules.New.fields()), "; "))
	}
	for _, f := range c.Frontends {
		f.text(&b, c.New)
	}
	for _, p := range c.Pools {
		p.text(&b)
	}
	for _, a := range c.ClusterIPs {
		line(&b, sign(!a.Added, a.Added), "cluster-ip "+a.Addr.String())
	}
	for _, a := range c.Hairpins {
		line(&b, sign(!a.Added, a.Added), "hairpin "+a.Addr.String())
	}
	for _, h := range c.Health {
		h.text(&b)
	}
	return b.String()
}

func line(b *strings.Builder, sign byte, text string) {
	b.WriteByte(sign)
	b.WriteByte(' ')
	b.WriteString(text)
	b.WriteByte('\n')
}

func sign(was, is bool) byte {
	switch {
	case !was:
		return '+'
	case !is:
		return '-'
	}
	return '~'
}

// text writes the change. If t, the new table, was resolved, it says why the frontend rejects or
// drops.
func (c FrontendChange) text(b *strings.Builder, t *Table) {
	why := ""
	if c.New != nil && t.remembers() {
		if cause := t.Cause(c.New); cause.Kind != NoCause {
			why = "; because " + cause.String()
		}
	}
	switch {
	case c.Old == nil:
		line(b, '+', "frontend "+c.New.String()+why)
	case c.New == nil:
		line(b, '-', "frontend "+c.Old.String())
	default:
		line(b, '~', "frontend "+c.New.title()+": "+strings.Join(
			changedFields(c.Old.fields(), c.New.fields()), "; ")+why)
	}
}

func (c PoolChange) text(b *strings.Builder) {
	switch {
	case c.Old == nil:
		line(b, '+', "pool "+c.New.String())
	case c.New == nil:
		line(b, '-', "pool "+c.Old.String())
	default:
		title := "pool " + c.New.ID.String() + ": "
		if changed := changedFields(c.Old.fields(), c.New.fields()); len(changed) > 0 {
			line(b, '~', title+strings.Join(changed, "; "))
		}
		for s := range c.Slots() {
			line(b, '~', title+s.String())
		}
	}
}

func (c HealthChange) text(b *strings.Builder) {
	switch {
	case c.Old == nil:
		line(b, '+', "health-check "+c.New.String())
	case c.New == nil:
		line(b, '-', "health-check "+c.Old.String())
	default:
		line(b, '~', "health-check "+c.Old.String()+" -> "+c.New.String())
	}
}

// String returns "slot 2: 10.0.1.7:8080 -> 10.0.2.9:8080"; a slot that was or became empty is
// "none".
func (c SlotChange) String() string {
	return fmt.Sprintf("slot %d: %v -> %v", c.Index, c.Old, c.New)
}

// String returns "10.0.1.7:8080", "10.0.1.7:8080 weight 3", or "none".
func (s Slot) String() string {
	switch {
	case !s.Endpoint.IsValid():
		return "none"
	case s.Weight != 1:
		return s.Endpoint.String() + " weight " + uitoa(s.Weight)
	}
	return s.Endpoint.String()
}

// String returns "default/web port 32000: local endpoints 2 IPv4, 1 IPv6", without the families in
// which the service does not exist.
func (h HealthCheck) String() string {
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
		if field.value != "default" && field.value != ForwardNAT.String() {
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

// field is one field of an object as text.
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
		{"masquerade", f.Masquerade.String()},
		{"affinity", durationText(f.Affinity)},
		{"sources", prefixesText(f.Sources)},
	}
}

func (p *Pool) fields() []field {
	scheduler := string(p.Scheduler)
	if p.Scheduler == SchedulerDefault {
		scheduler = "default"
	}
	return []field{{"scheduler", scheduler}, {"forwarding", p.Forwarding.String()}}
}

func (r Rules) fields() []field {
	return []field{
		{"masquerade mark", fmt.Sprintf("%#x", r.MasqueradeMark)},
		{"pods", r.LocalPods.text()},
		{"node ports", prefixesText(r.NodePorts)},
		{"service CIDRs", prefixesText(r.ServiceCIDRs)},
		{"localhost node ports", fmt.Sprint(r.LocalhostNodePorts)},
		{"masquerade neighbours", fmt.Sprint(r.MasqueradeNeighbours)},
	}
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

func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func prefixesText(list []netip.Prefix) string { return strings.Join(prefixTexts(list), ", ") }

func prefixTexts(list []netip.Prefix) []string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return texts
}
