package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
)

var _ backends.Plan = (*plan)(nil)

// String is the plan in the language of iptables-restore --noflush. A comment with the name of the
// tool precedes each family. A rule in one of our chains is named by its number at that point, and
// a rule in a shared chain by its text.
func (p *plan) String() string {
	var b strings.Builder
	for _, f := range nft.Families {
		first := true
		for _, t := range tablesOf(f) {
			body := p.tableText(t)
			if body == "" {
				continue
			}
			if first {
				fmt.Fprintf(&b, "# %s-restore --noflush\n", toolName(f.Model))
				first = false
			}

			fmt.Fprintf(&b, "*%s\n%sCOMMIT\n", t.kind(), body)
		}
	}

	for _, line := range p.sysctls.Lines() {
		fmt.Fprintf(&b, "# sysctl %s\n", line)
	}
	return b.String()
}

// tableText returns the lines for one table: first the chains to create, last the chains to delete.
func (p *plan) tableText(t table) string {
	var b strings.Builder
	changes := slices.DeleteFunc(slices.Clone(p.chains), func(x *chainChange) bool {
		return x.id.table != t
	})
	var made, gone []string
	if v := p.version; v != nil && v.made && v.next.table == t {
		made = append(made, v.next.name)
	}
	for _, x := range changes {
		if x.creates() && !isBase(x.id) { // iptables creates base chains itself
			made = append(made, x.id.name)
		}
		if p.deletes(x) {
			gone = append(gone, x.id.name)
		}
	}

	if p.version != nil {
		for _, v := range p.version.gone {
			if v.table == t {
				gone = append(gone, v.name)
			}
		}
	}

	for _, name := range made {
		fmt.Fprintf(&b, ":%s - [0:0]\n", name)
	}
	for _, x := range changes {
		if !x.removes() {
			x.appendText(&b)
		}
	}

	for _, x := range changes {
		if x.removes() && len(x.before) > 0 {
			fmt.Fprintf(&b, "-F %s\n", x.id.name)
		}
	}

	for _, name := range gone {
		fmt.Fprintf(&b, "-X %s\n", name)
	}
	return b.String()
}

// appendText appends the lines for the rules of a chain.
func (x *chainChange) appendText(b *strings.Builder) {
	if x.shared { // old rules are deleted by their text, new rules inserted at the beginning
		for i := range x.before {
			if !x.before[i].opaque {
				x.line(b, "-D", 0, &x.before[i])
			}
		}

		for i := range x.after {
			x.line(b, "-I", i+1, &x.after[i])
		}
		return
	}

	edits := editsBetween(x.before, x.after)
	n := 1 // the present number of the rule that the step changes
	for _, e := range edits {
		switch e.kind {
		case editKeep:
			n++
		case editInsert:
			if e.at == len(x.before) {
				x.line(b, "-A", 0, &x.after[e.rule])
			} else {
				x.line(b, "-I", n, &x.after[e.rule])
			}

			n++
		case editReplace:
			x.line(b, "-R", n, &x.after[e.rule])
			n++
		case editDelete:
			fmt.Fprintf(b, "-D %s %d\n", x.id.name, n)
		}
	}
}

// line appends a command about a rule. n is 0 if the rule has no number.
func (x *chainChange) line(b *strings.Builder, command string, n int, r *rule) {
	b.WriteString(command + " " + x.id.name)
	if n > 0 {
		fmt.Fprintf(b, " %d", n)
	}
	r.appendText(b, x.id.table.family().Model)
	b.WriteByte('\n')
}
