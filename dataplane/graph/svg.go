package graph

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Sizes in pixels. Texts are monospaced, so that their width is known without a font.
const (
	charWidth  = 7.3 // for a font of 12 px, whose characters are at most 7.2 wide
	lineHeight = 16
	padding    = 10
	below      = 14 // from one box to the next
	head       = 22 // for the titles of groups
	margin     = 16
	bends      = 36 // for the bends of the arrows to a column
	tip        = 16 // from the text of an arrow to its end
)

// svgStyle contains the colours for light and dark mode.
const svgStyle = `text{font:12px ui-monospace,"DejaVu Sans Mono",Menlo,monospace;fill:#1c2024}
.head,.on{fill:#5b6570}.on{font-size:11px}
rect{fill:#f4f6f8;stroke:#8a94a0}path{fill:none;stroke:#8a94a0}marker path{fill:#8a94a0}
.refuses rect{stroke:#b3201c;stroke-width:2}.foreign rect{stroke-dasharray:4 3}
.aside rect{fill:none;stroke:#d9dee4}.back{fill:#fff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6e9ec}.head,.on{fill:#a2acb6}
rect{fill:#1d2226;stroke:#69747f}path{stroke:#69747f}marker path{fill:#69747f}
.refuses rect{stroke:#ff8a80}.aside rect{fill:none;stroke:#333b43}.back{fill:#14171a}}`

// SVG returns the graph as a picture without scripts, fonts or other files. It is light or dark,
// depending on the viewer's browser.
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
	edges := g.ends()
	for _, e := range edges {
		fmt.Fprintf(&b, `<path marker-end="url(#arrow)" d="%s"/>`+"\n", g.path(e))
	}
	for _, n := range g.groups {
		if n.title != "" && n.width > 0 {
			fmt.Fprintf(&b, `<text class="head" x="%d" y="%d">%s</text>`+"\n", n.x,
				n.titleY, xmlText(n.title))
		}

		for _, x := range n.boxes {
			x.svg(&b)
		}
	}

	for _, e := range edges {
		if e.text != "" {
			fmt.Fprintf(&b, `<text class="on" text-anchor="end" x="%d" y="%d">%s</text>`+"\n",
				e.to.x-tip-4, e.y+4, xmlText(e.text))
		}
	}

	b.WriteString("</svg>\n")
	return b.String()
}

func (x *box) svg(b *strings.Builder) {
	fmt.Fprintf(b, `<g class="%s"><rect x="%d" y="%d" width="%d" height="%d" rx="4"/>`,
		looks[x.look], x.x, x.y, x.width, x.height)
	top := x.y + (x.height-len(x.lines)*lineHeight)/2
	for i, l := range x.lines {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, x.x+padding, top+i*lineHeight+13,
			xmlText(l))
	}

	b.WriteString("</g>\n")
}

// ends gives each arrow its own end, and returns the arrows from top to bottom. So arrows to the
// same box never meet, and there is room for their texts.
func (g *Graph) ends() []edge {
	edges := slices.SortedStableFunc(slices.Values(g.edges), func(a, b edge) int {
		return cmp.Compare(a.from.y, b.from.y)
	})
	entered := map[*box]int{}
	for i := range edges {
		e := &edges[i]
		e.y = e.to.y + e.to.height/2 + (2*entered[e.to]-e.to.entries+1)*lineHeight/2
		entered[e.to]++
	}

	return edges
}

// path returns the line of an arrow: down within a group, else to the right. Arrows to a column
// cross each other only to the left of all texts. From there they are straight, with a gap for
// their text.
func (g *Graph) path(e edge) string {
	x1, y1 := e.from.x+e.from.width, e.from.y+e.from.height/2
	if e.from.x == e.to.x {
		x := e.from.x + min(e.from.width, e.to.width)/2
		return fmt.Sprintf("M%d %dV%d", x, e.from.y+e.from.height, e.to.y)
	}

	end := fmt.Sprintf("H%d", e.to.x)
	if e.text != "" {
		text := e.to.x - tip - 8 - textWidth(e.text)
		end = fmt.Sprintf("H%dM%d %dH%d", text, e.to.x-tip, e.y, e.to.x)
	}

	if g.ways {
		return fmt.Sprintf("M%d %dH%dV%d%s", x1, y1, e.to.entry-10, e.y, end)
	}
	middle := (x1 + e.to.entry) / 2
	return fmt.Sprintf("M%d %dC%d %d %d %d %d %d%s", x1, y1, middle, y1, middle, e.y, e.to.entry,
		e.y, end)
}

// place sets the position and size of each box, and returns the size of the picture.
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

	at, straight, x := make([]int, columns), g.straight(columns), margin
	for i, w := range widest {
		if i > 0 {
			x += bends + straight[i]
		}
		at[i] = x
		if w > 0 {
			x += w
			width = x + margin
		}
	}

	for _, n := range g.groups {
		n.x, n.width = at[n.column], widest[n.column]
		for _, b := range n.boxes {
			b.x, b.width, b.entry = n.x, n.width, n.x-straight[n.column]
		}
	}

	return max(width, 2*margin), g.stackAll() + margin
}

// stackAll places the groups of each row side by side, below the previous row, and returns the
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

// height returns the height of the group's boxes, one below the other.
func (n *group) height() int {
	h := -below
	for _, b := range n.boxes {
		h += b.height + below
	}
	return max(h, 0)
}

// straight returns, for each column, the width of the space before it in which arrows are straight
// and have their texts.
func (g *Graph) straight(columns int) []int {
	widths := slices.Repeat([]int{8}, columns)
	for _, e := range g.edges {
		if e.text != "" {
			widths[e.to.column] = max(widths[e.to.column], 8+textWidth(e.text)+tip)
		}
	}

	return widths
}

func (x *box) size() {
	x.width = 0
	for _, l := range x.lines {
		x.width = max(x.width, textWidth(l)+2*padding)
	}
	x.height = max(len(x.lines), x.entries)*lineHeight + 2*padding - 4
}

// textWidth returns an upper bound of the width of a text.
func textWidth(s string) int { return int(float64(utf8.RuneCountInString(s)) * charWidth) }

func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}
