package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// The lines around the list: two above its header, and below it the newest events and the keys.
const (
	linesAbove  = 3
	recentLines = 3
)

// rows returns how many services fit on the screen.
func (m *model) rows() int { return max(1, m.height-linesAbove-recentLines-2) }

// View draws the screen.
func (m *model) View() string {
	lines := []string{m.styles.head.Render(pad(m.title(), m.width)), m.engineLine()}
	switch {
	case m.between.now == nil && m.err == nil:
		lines = append(lines, "reading the kernel ...")
	case m.detail:
		lines = append(lines, m.details()...)
	default:
		lines = append(lines, m.list()...)
	}

	lines = fit(lines, max(0, m.height-recentLines-2))
	lines = append(lines, m.styles.dim.Render("RECENT CHANGES"))
	lines = append(lines, m.recentLines()...)
	lines = append(lines, m.keys())
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "…")
	}
	return strings.Join(lines[max(0, len(lines)-m.height):], "\n")
}

// title returns the first line of the screen: its subject and the totals.
func (m *model) title() string {
	now := m.between.now
	if now == nil {
		return "kernlb top"
	}
	t := fmt.Sprintf("%s  %d services", now.backend, len(m.all))
	if now.sums != nil {
		per, sum := m.between.perSecond, m.sum.since
		t += fmt.Sprintf("  %s conn/s  %sB/s in  %sB/s out", per(sum.Connections),
			per(sum.BytesIn), per(sum.BytesOut))
	}

	if m.paused {
		t += "  paused"
	}
	return t + "  " + now.at.Format("15:04:05")
}

// engineLine returns the present error, or the engine's latency.
func (m *model) engineLine() string {
	switch now := m.between.now; {
	case m.err != nil:
		return m.styles.bad.Render("not read: " + m.err.Error())
	case now != nil && now.sums == nil:
		return m.styles.bad.Render("nothing is counted: kernlb count switches that on")
	case now != nil && now.full:
		return m.styles.bad.Render("there are more frontends and endpoints than are counted")
	case m.recent.why != "":
		return m.styles.dim.Render("recent changes and latencies are not known: " + m.recent.why)
	}

	return m.recent.latency()
}

// The widths of the columns of numbers, and of the last one, which narrow screens leave out.
const (
	numbersWidth = 50
	totalWidth   = 12
)

// wide reports whether the last column fits beside names of 30 characters.
func (m *model) wide() bool { return m.width >= 30+numbersWidth+totalWidth }

func (m *model) nameWidth() int {
	w := m.width - numbersWidth
	if m.wide() {
		w -= totalWidth
	}
	return max(20, w)
}

// columns returns a line of the list.
func (m *model) columns(name string, numbers [5]string, total string) string {
	line := pad(name, m.nameWidth())
	for _, n := range numbers {
		line += fmt.Sprintf("%10s", n)
	}
	if m.wide() {
		line += fmt.Sprintf("%12s", total)
	}
	return line
}

// header returns the header of a list. what is the title of its first column.
func (m *model) header(what string) string {
	return m.columns("  "+what, [5]string{"ENDPOINTS", "CONN/S", "PACKETS/S", "IN B/S", "OUT B/S"},
		"CONNECTIONS")
}

func (m *model) row(mark, name, endpoints string, r rates) string {
	room := m.nameWidth() - len(mark)
	if cut := len(name) - room; cut > 0 && len(mark) > 2 {
		name = "…" + name[cut+1:] // an address keeps its port
	}
	name = mark + ansi.Truncate(name, room, "…")
	if m.between.now.sums == nil {
		return m.columns(name, [5]string{endpoints}, "")
	}
	per := m.between.perSecond
	return m.columns(name, [5]string{endpoints, per(r.since.Connections), per(r.packets()),
		per(r.since.BytesIn), per(r.since.BytesOut)}, fmt.Sprint(r.total.Connections))
}

// list returns the services that fit on the screen.
func (m *model) list() []string {
	lines := []string{m.header("SERVICE")}
	if m.between.now == nil {
		return lines
	}
	for i, s := range m.shown[m.first:min(len(m.shown), m.first+m.rows())] {
		mark := "  "
		if m.first+i == m.at() {
			mark = "> "
		}
		lines = append(lines, m.row(mark, s.name.String(), fmt.Sprint(s.endpoints), s.rates))
	}

	if len(m.shown) == 0 {
		lines = append(lines, "  none")
	}
	return lines
}

// details returns everything known about the selected service.
func (m *model) details() []string {
	s := m.shown[m.at()]
	lines := []string{m.header("SERVICE"), m.row("  ", s.name.String(),
		fmt.Sprint(s.endpoints), s.rates)}
	if m.between.now.sums == nil {
		return lines
	}
	frontends, endpoints := m.between.parts(&s)
	for _, p := range frontends {
		lines = append(lines, m.row("  at ", p.name, "", p.rates))
	}
	for _, p := range endpoints {
		share := fmt.Sprintf("%.1f %%", 100*shareOf(p.rates, endpoints))
		lines = append(lines, m.row("  -> ", p.name, share, p.rates))
	}

	if room := m.rows(); len(lines) > room+1 {
		lines = append(lines[:room], fmt.Sprintf("  and %d more", len(lines)-room))
	}
	return lines
}

// recentLines returns the newest events. If a service is shown alone, they are about that service.
func (m *model) recentLines() []string {
	var l []string
	switch {
	case m.recent.why != "":
		l = []string{"not known"}
	case m.detail:
		l = m.recent.about(m.selected)
	default:
		for _, e := range m.recent.Events[:min(len(m.recent.Events), recentLines)] {
			l = append(l, e.line())
		}
	}

	if len(l) == 0 {
		l = []string{"none"}
	}
	return fit(l, recentLines)
}

// keys returns the help for keys, or the text being typed.
func (m *model) keys() string {
	switch {
	case m.typing:
		return "filter: " + m.filter + "_  enter keeps it, escape takes it away"
	case m.detail:
		return m.styles.dim.Render("escape: all services  space: pause  q: quit")
	}

	text := "by " + orders[m.order].by
	if m.filter != "" {
		text += ", with " + m.filter + " in the name"
	}
	return m.styles.dim.Render(text + "  c p b n: sort  /: filter  enter: open  " +
		"space: pause  q: quit")
}

// table returns all services as text, for output without a screen.
func (m *model) table() string {
	var b strings.Builder
	m.width = 100
	fmt.Fprintln(&b, m.title())
	fmt.Fprintln(&b, m.engineLine())
	fmt.Fprintln(&b, m.header("SERVICE"))
	for _, s := range m.shown {
		fmt.Fprintln(&b, m.row("  ", s.name.String(), fmt.Sprint(s.endpoints), s.rates))
	}
	return b.String()
}

// short returns a number in at most six characters.
func short(v float64) string {
	units := "kMGTP"
	unit := ""
	for ; v >= 999.95 && units != ""; units = units[1:] {
		v, unit = v/1000, units[:1]
	}
	if unit == "" && v == math.Trunc(v) {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%.1f%s", v, unit)
}

// fit cuts off lines, or adds empty ones.
func fit(lines []string, n int) []string {
	return append(lines, make([]string, n)...)[:n]
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}
