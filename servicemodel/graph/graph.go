package graph

// Graph is boxes in columns, and arrows between them. It is made by [Services] and [Hooks], and
// written by its methods.
type Graph struct {
	title  string
	groups []*group // by column and row
	edges  []edge
	boxes  int
	// ways says that boxes of a group come one after the other, as the chains of a hook do, and
	// that titles are those of groups, not of columns.
	ways bool
}

// group is boxes one below the other.
type group struct {
	title       string
	column, row int
	boxes       []*box
	titleY      int // of the SVG
}

// look is what a box is.
type look uint8

const (
	plain   look = iota
	refuses      // connections end here
	foreign      // of another program
	aside        // the kernel's own, or what is left out
)

// looks are their names.
var looks = [...]string{"plain", "refuses", "foreign", "aside"}

// box is a box with lines of text.
type box struct {
	id     int
	column int
	lines  []string
	look   look

	x, y, width, height int // of the SVG
}

// edge is an arrow with a text.
type edge struct {
	from, to *box
	text     string
}

func (g *Graph) group(column, row int, title string) *group {
	n := &group{title: title, column: column, row: row}
	g.groups = append(g.groups, n)
	return n
}

// add adds a box to a group.
func (g *Graph) add(to *group, l look, lines ...string) *box {
	b := &box{id: g.boxes, column: to.column, look: l, lines: lines}
	g.boxes++
	to.boxes = append(to.boxes, b)
	return b
}

func (g *Graph) connect(from, to *box, text string) {
	g.edges = append(g.edges, edge{from, to, text})
}
