package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// plotCommand draws the figures of measure, and prints their tables.
func plotCommand(_ context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("plot", flag.ContinueOnError)
	from := fs.String("from", "figures.json", "the `FILE` with the figures")
	into := fs.String("o", ".", "the `DIRECTORY` for the drawings")
	if err := fs.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*from)
	if err != nil {
		return err
	}
	var f figureFile
	if err := json.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("%s: %w", *from, err)
	}
	f.tables(out)
	return errors.Join(
		os.WriteFile(filepath.Join(*into, "cost.svg"), []byte(f.costChart().svg()), 0o644),
		os.WriteFile(filepath.Join(*into, "first-packet.svg"), []byte(f.firstChart().svg()), 0o644))
}

// title is the name of a peer for people.
func title(peer string) string {
	switch peer {
	case "kube-proxy-nftables":
		return "kube-proxy 1.36.3"
	case kubeNFTables137:
		return "kube-proxy 1.37.2"
	case "kernlb-nftables":
		return "kernlb"
	}

	return peer
}

func (f *figureFile) costChart() *chart {
	c := &chart{title: "Full sync (solid) and one endpoint (dashed), nftables", x: "services",
		y: "ms"}
	for _, row := range f.Costs {
		x := float64(row.Services)
		c.add(title(row.Peer), false, x, row.FullMs)
		c.add(title(row.Peer), true, x, row.EndpointMs)
	}

	return c
}

// firstChart shows the slowest service of each load: the median of its first packets.
func (f *figureFile) firstChart() *chart {
	c := &chart{title: "First packet to the slowest service, nftables, IPv4",
		x: "different numbers of endpoints among the services", y: "µs"}
	worst := map[[2]string]float64{}
	var order [][2]string
	for _, row := range f.First {
		key := [2]string{row.Peer, row.Load}
		if row.Family != "IPv4" || !strings.HasSuffix(row.Load, " sizes") {
			continue
		}
		if worst[key] == 0 {
			order = append(order, key)
		}
		worst[key] = max(worst[key], row.P50Us)
	}

	for _, key := range order {
		var sizes float64
		if _, err := fmt.Sscan(key[1], &sizes); err == nil {
			c.add(title(key[0]), false, sizes, worst[key])
		}
	}

	return c
}

// tables prints the figures as tables for the documents.
func (f *figureFile) tables(out io.Writer) {
	fmt.Fprintf(out, "# Beside kube-proxy\n\n`make figures` wrote this page. %s, %d CPUs, load "+
		"before and after: %s.\nMix: %s.\n\n", f.Kernel, f.CPUs, f.Load, f.Mix)
	fmt.Fprint(out, "| | services | endpoints | full sync | its CPU | one endpoint | its CPU |\n"+
		"|---|---:|---:|---:|---:|---:|---:|\n")
	for _, r := range f.Costs {
		fmt.Fprintf(out, "| %s | %d | %d | %s | %s | %s | %s |\n", title(r.Peer), r.Services,
			r.Endpoints, short(r.FullMs), short(r.FullCPUMs), short(r.EndpointMs),
			short(r.EndpointCPUMs))
	}

	loads := map[string]bool{}
	for _, r := range f.First {
		if !loads[r.Load] {
			loads[r.Load] = true
			f.firstTable(out, r.Load)
		}
	}

	fmt.Fprint(out, "\n| | path | ns a datagram |\n|---|---|---:|\n")
	for _, r := range f.Established {
		fmt.Fprintf(out, "| %s | %s | %.0f |\n", title(r.Peer), r.Path, r.Ns)
	}
}

func (f *figureFile) firstTable(out io.Writer, load string) {
	var sizes []int
	var peers []string
	cells := map[string]string{}
	for _, r := range f.First {
		if r.Load != load {
			continue
		}
		if !slices.Contains(sizes, r.Size) {
			sizes = append(sizes, r.Size)
		}
		who := title(r.Peer) + ", " + r.Family
		if !slices.Contains(peers, who) {
			peers = append(peers, who)
		}
		cells[fmt.Sprint(who, r.Size)] = fmt.Sprintf("%.1f, %.0f", r.P50Us, r.P99Us)
	}

	slices.Sort(peers)
	fmt.Fprintf(out, "\n| %s: p50, p99 in µs |", load)
	for _, s := range sizes {
		fmt.Fprintf(out, " %d |", s)
	}
	fmt.Fprint(out, "\n|---|"+strings.Repeat("---:|", len(sizes))+"\n")
	for _, who := range peers {
		fmt.Fprintf(out, "| %s |", who)
		for _, s := range sizes {
			fmt.Fprintf(out, " %s |", cells[fmt.Sprint(who, s)])
		}
		fmt.Fprintln(out)
	}
}

// short returns a time in a short form for people.
func short(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}

	return fmt.Sprintf("%.2f ms", ms)
}

// chart is a drawing with two logarithmic axes.
type chart struct {
	title, x, y string
	names       []string
	lines       []line
}

type line struct {
	name   string
	dashed bool
	points [][2]float64
}

// add adds a point to the line of a name.
func (c *chart) add(name string, dashed bool, x, y float64) {
	if !slices.Contains(c.names, name) {
		c.names = append(c.names, name)
	}
	i := slices.IndexFunc(c.lines, func(l line) bool {
		return l.name == name && l.dashed == dashed
	})
	if i < 0 {
		i = len(c.lines)
		c.lines = append(c.lines, line{name: name, dashed: dashed})
	}

	c.lines[i].points = append(c.lines[i].points, [2]float64{x, y})
}

// The place of the axes in the drawing.
const (
	chartWidth, chartHeight = 790, 400
	left, right             = 70, 560
	top, bottom             = 50, 340
)

// palette has colours that are visible on white and on black.
var palette = []string{"#2f81f7", "#db6d28", "#3fb950", "#8b949e", "#a371f7", "#d29922"}

// axis maps values to places.
type axis struct {
	values   []float64 // the marks
	from, to float64   // where the first and the last mark are
}

// newAxis returns an axis with marks at the powers of ten, and, if these are few, at 2 and 5 times
// these powers.
func newAxis(low, high, from, to float64) axis {
	a := axis{from: from, to: to}
	steps := []float64{1}
	if math.Log10(high/low) < 2 {
		steps = []float64{1, 2, 5}
	}
	for e := math.Floor(math.Log10(low)); ; e++ {
		for _, s := range steps {
			v := s * math.Pow(10, e)
			for len(a.values) > 0 && a.values[0] < low && v <= low*1.0001 {
				a.values = a.values[:0]
			}
			a.values = append(a.values, v)
			if v >= high*0.9999 {
				return a
			}
		}
	}
}

func (a axis) at(v float64) float64 {
	first, last := math.Log(a.values[0]), math.Log(a.values[len(a.values)-1])
	if first == last {
		return (a.from + a.to) / 2
	}
	return a.from + (math.Log(v)-first)/(last-first)*(a.to-a.from)
}

// mark is a mark of the vertical axis, in the unit that keeps it short.
func mark(v float64, unit string) string {
	switch {
	case unit == "ms" && v >= 1000:
		v, unit = v/1000, "s"
	case unit == "ms" && v < 1:
		v, unit = v*1000, "µs"
	}

	return fmt.Sprintf("%.10g %s", v, unit)
}

func (c *chart) svg() string {
	low, high := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{}
	for _, l := range c.lines {
		for _, p := range l.points {
			for i := range p {
				low[i], high[i] = min(low[i], p[i]), max(high[i], p[i])
			}
		}
	}

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img">
<title>%s</title>
<style>
text { font: 13px sans-serif; fill: #57606a }
.grid { stroke: #8b949e; stroke-opacity: 0.3 }
@media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } }
</style>
`, chartWidth, chartHeight, html.EscapeString(c.title))
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
			html.EscapeString(s))
	}

	text(left, top-22, "start", c.title)
	if len(c.lines) == 0 {
		return b.String() + "</svg>\n"
	}
	x, y := newAxis(low[0], high[0], left, right), newAxis(low[1], high[1], bottom, top)
	for _, v := range x.values {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%.1f %d V%d\"/>\n", x.at(v), top, bottom)
		text(x.at(v), bottom+18, "middle", fmt.Sprintf("%.10g", v))
	}

	for _, v := range y.values {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%d %.1f H%d\"/>\n", left, y.at(v), right)
		text(left-8, y.at(v)+4, "end", mark(v, c.y))
	}

	text((left+right)/2, bottom+42, "middle", c.x)
	for _, l := range c.lines {
		colour, dash := palette[slices.Index(c.names, l.name)%len(palette)], ""
		if l.dashed {
			dash = ` stroke-dasharray="6 4"`
		}
		var path strings.Builder
		for i, p := range l.points {
			fmt.Fprintf(&path, "%c%.1f %.1f ", "ML"[min(i, 1)], x.at(p[0]), y.at(p[1]))
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x.at(p[0]),
				y.at(p[1]), colour)
		}

		fmt.Fprintf(&b, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
			strings.TrimSpace(path.String()), colour, dash)
	}

	for i, name := range c.names {
		at := float64(top + 10 + 22*i)
		fmt.Fprintf(&b, "<path d=\"M%d %.1f h18\" stroke=\"%s\" stroke-width=\"2\"/>\n", right+12,
			at-4, palette[i%len(palette)])
		text(right+36, at, "start", name)
	}

	return b.String() + "</svg>\n"
}
