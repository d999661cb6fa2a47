package graph

// Graph is a drawing of boxes in columns, with arrows between them. [Services] and [Hooks] build
// graphs, and the methods write them.
type Graph struct {
	title  string
	groups []*group // by column and row
	edges  []edge
	boxes  int
	// ways says that the boxes of a group follow each other, like the chains of a hook, and that
	// titles belong to groups instead of columns.
	ways bool
}

// group holds boxes one below the other.
type group struct {
	title       string
	column, row int
	boxes       []*box
	x, width    int // of the column, in the SVG
	titleY      int
}

// look is the kind of a box.
type look uint8

const (
	plain   look = iota
	refuses      // connections end here
	foreign      // of another program
	aside        // the kernel's own, or left out
)

// looks are the names of looks.
var looks = [...]string{"plain", "refuses", "foreign", "aside"}

// box is a box with lines of text.
type box struct {
	id     int
	column int
	lines  []string
	look   look

	entries int // the number of arrows from other columns

	x, y, width, height int // in the SVG
	entry               int // where arrows from other columns become straight
}

// edge is an arrow with a text.
type edge struct {
	from, to *box
	text     string

	y int // of its end, in the SVG
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
	g.edges = append(g.edges, edge{from: from, to: to, text: text})
	if from.column != to.column {
		to.entries++
	}
}
