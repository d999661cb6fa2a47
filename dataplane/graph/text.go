package graph

import (
	"fmt"
	"strings"
	"unicode"
)

// Mermaid returns the graph as a flowchart of Mermaid (https://mermaid.js.org). GitHub and other
// sites render it inside documents.
func (g *Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for _, n := range g.groups {
		titled := g.ways && n.title != ""
		if titled {
			fmt.Fprintf(&b, "  subgraph g%d [\"%s\"]\n    direction TB\n", n.boxes[0].id,
				mermaidText(n.title))
		}

		for _, x := range n.boxes {
			var lines []string
			for _, l := range x.lines {
				lines = append(lines, mermaidText(l))
			}
			fmt.Fprintf(&b, "    n%d[\"%s\"]:::%s\n", x.id, strings.Join(lines, "<br>"),
				looks[x.look])
		}

		if titled {
			b.WriteString("  end\n")
		}
	}

	for _, e := range g.edges {
		text := ""
		if e.text != "" {
			text = "|\"" + mermaidText(e.text) + "\"|"
		}
		fmt.Fprintf(&b, "  n%d -->%s n%d\n", e.from.id, text, e.to.id)
	}

	b.WriteString("  classDef refuses stroke:#b3201c,stroke-width:2px\n" +
		"  classDef foreign stroke-dasharray:4 3\n  classDef aside stroke-opacity:0.4\n" +
		"  classDef plain stroke-width:1px\n")
	return b.String()
}

// mermaidText replaces the special characters of Mermaid and HTML with their numbers.
func mermaidText(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" .,:/%*_-()[]", r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "#%d;", r)
		}
	}

	return b.String()
}

// DOT returns the graph in the language of Graphviz (https://graphviz.org/doc/info/lang.html).
func (g *Graph) DOT() string {
	var b strings.Builder
	b.WriteString("digraph kernlb {\n  rankdir=LR\n" +
		"  node [shape=box, fontname=monospace, fontsize=10]\n" +
		"  edge [fontname=monospace, fontsize=9]\n")
	for _, n := range g.groups {
		titled := g.ways && n.title != ""
		if titled {
			fmt.Fprintf(&b, "  subgraph cluster_%d {\n    label=%s\n", n.boxes[0].id,
				dotText(n.title))
		}

		for _, x := range n.boxes {
			fmt.Fprintf(&b, "    n%d [label=%s%s]\n", x.id, dotText(x.lines...),
				dotLooks[x.look])
		}

		if titled {
			b.WriteString("  }\n")
		}
	}

	for _, e := range g.edges {
		text := ""
		if e.text != "" {
			text = " [label=" + dotText(e.text) + "]"
		}
		fmt.Fprintf(&b, "  n%d -> n%d%s\n", e.from.id, e.to.id, text)
	}

	b.WriteString("}\n")
	return b.String()
}

var dotLooks = [...]string{"", ", color=\"#b3201c\", penwidth=2", ", style=dashed",
	", color=gray"}

// dotText returns the lines as a quoted string, in which only quotes and backslashes need escapes.
func dotText(lines ...string) string {
	escaped := make([]string, len(lines))
	for i, l := range lines {
		escaped[i] = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(l)
	}
	return `"` + strings.Join(escaped, `\n`) + `"`
}
