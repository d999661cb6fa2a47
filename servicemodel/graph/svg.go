package graph

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Sizes in pixels. Texts are monospaced, so that their width is known without a font.
const (
	charWidth  = 7.3 // of 12 px; fonts have 7.2 or less
	lineHeight = 16
	padding    = 10
	below      = 14 // from one box to the next
	head       = 22 // for the titles of groups
	margin     = 16
)

// svgStyle has the colours for light and dark.
const svgStyle = `text{font:12px ui-monospace,"DejaVu Sans Mono",Menlo,monospace;fill:#1c2024}
.head,.on{fill:#5b6570}.on{font-size:11px;stroke:#fff;stroke-width:4px;paint-order:stroke}
rect{fill:#f4f6f8;stroke:#8a94a0}path{fill:none;stroke:#8a94a0}marker path{fill:#8a94a0}
.refuses rect{stroke:#b3201c;stroke-width:2}.foreign rect{stroke-dasharray:4 3}
.aside rect{fill:none;stroke:#d9dee4}.back{fill:#fff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6e9ec}.head,.on{fill:#a2acb6}.on{stroke:#14171a}
rect{fill:#1d2226;stroke:#69747f}path{stroke:#69747f}marker path{fill:#69747f}
.refuses rect{stroke:#ff8a80}.aside rect{fill:none;stroke:#333b43}.back{fill:#14171a}}`

// SVG returns the graph as a picture that needs neither scripts nor fonts nor anything else, in
// light or dark as who looks at it prefers.
func (g *Graph) SVG() string {
	width, height := g.place()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="%s" `+
		`width="%d" height="%d" viewBox="0 0 %d %d">`+"\n<style>%s</style>\n", xmlText(g.title),
		width, height, width, height, svgStyle)
	b.WriteString(`<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" ` +
		`markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>` +
		"\n")
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", width, height)
	for _, e := range g.edges {
		fmt.Fprintf(&b, `<path marker-end="url(#arrow)" d="%s"/>`+"\n", g.path(e))
	}
	for _, n := range g.groups {
		if n.title != "" && len(n.boxes) > 0 {
			fmt.Fprintf(&b, `<text class="head" x="%d" y="%d">%s</text>`+"\n", n.boxes[0].x,
				n.titleY, xmlText(n.title))
		}
		for _, x := range n.boxes {
			x.svg(&b)
		}
	}
	led := map[*box]int{} // texts at a box: one above the arrows, the others below
	for _, e := range g.edges {
		if e.text == "" {
			continue
		}
		y := e.to.y + e.to.height/2 - 4 + 16*led[e.to]
		led[e.to]++
		fmt.Fprintf(&b, `<text class="on" text-anchor="end" x="%d" y="%d">%s</text>`+"\n",
			e.to.x-12, y, xmlText(e.text))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (x *box) svg(b *strings.Builder) {
	fmt.Fprintf(b, `<g class="%s"><rect x="%d" y="%d" width="%d" height="%d" rx="4"/>`,
		looks[x.look], x.x, x.y, x.width, x.height)
	for i, l := range x.lines {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, x.x+padding,
			x.y+padding+i*lineHeight+11, xmlText(l))
	}
	b.WriteString("</g>\n")
}

// path is the way of an arrow: down within a group, else to the right.
func (g *Graph) path(e edge) string {
	x1, y1 := e.from.x+e.from.width, e.from.y+e.from.height/2
	x2, y2 := e.to.x, e.to.y+e.to.height/2
	switch {
	case e.from.x == e.to.x:
		x := e.from.x + min(e.from.width, e.to.width)/2
		return fmt.Sprintf("M%d %dV%d", x, e.from.y+e.from.height, e.to.y)
	case g.ways:
		return fmt.Sprintf("M%d %dH%dV%dH%d", x1, y1, x2-20, y2, x2)
	}
	middle := (x1 + x2) / 2
	return fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, middle, y1, middle, y2, x2, y2)
}

// place gives each box its place and size, and returns the size of the picture.
func (g *Graph) place() (width, height int) {
	columns := 0
	for _, n := range g.groups {
		columns = max(columns, n.column+1)
	}
	widest := make([]int, columns)
	for _, n := range g.groups {
		for _, b := range n.boxes {
			b.size()
			widest[n.column] = max(widest[n.column], b.width)
		}
	}
	at, x := make([]int, columns), margin
	for i, w := range widest {
		if at[i] = x; w > 0 {
			width = x + w + margin
			x += w + g.gap(i+1)
		}
	}
	for _, n := range g.groups {
		for _, b := range n.boxes {
			b.x, b.width = at[n.column], widest[n.column]
		}
	}
	return max(width, 2*margin), g.stackAll() + margin
}

// stackAll places the groups of each row beside one another, below the row before, and returns the
// bottom.
func (g *Graph) stackAll() (bottom int) {
	var rows [][]*group
	for _, n := range g.groups {
		for len(rows) <= n.row {
			rows = append(rows, nil)
		}
		rows[n.row] = append(rows[n.row], n)
	}
	for _, row := range rows {
		top := bottom + margin
		for _, n := range row {
			if n.title != "" {
				n.titleY = top + 14
			}
		}
		if slices.ContainsFunc(row, func(n *group) bool { return n.title != "" }) {
			top += head
		}
		for _, n := range row {
			bottom = max(bottom, top+n.height())
		}
		for _, n := range row {
			y := top
			if !g.ways {
				y += (bottom - top - n.height()) / 2
			}
			for _, b := range n.boxes {
				b.y = y
				y += b.height + below
			}
		}
	}
	return bottom
}

// height is that of the boxes of the group, one below the other.
func (n *group) height() int {
	h := -below
	for _, b := range n.boxes {
		h += b.height + below
	}
	return max(h, 0)
}

// gap is the space before a column, in which the texts of arrows are.
func (g *Graph) gap(column int) int {
	longest := 0
	for _, e := range g.edges {
		if e.to.column == column {
			longest = max(longest, utf8.RuneCountInString(e.text))
		}
	}
	return 44 + int(float64(longest)*charWidth)
}

// size gives the box its size.
func (x *box) size() {
	longest := 0
	for _, l := range x.lines {
		longest = max(longest, utf8.RuneCountInString(l))
	}
	x.width = int(float64(longest)*charWidth) + 2*padding
	x.height = len(x.lines)*lineHeight + 2*padding - 4
}

func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes all
	return b.String()
}
