package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

var _ backends.Plan = (*Plan)(nil)

// Stats counts the messages and bytes of the plan.
func (p *Plan) Stats() backends.Stats {
	var b rawnl.Batch
	p.Encode(&b)
	elements, _ := p.Load()
	return backends.Stats{Messages: b.Len(), Bytes: len(b.Bytes()), Elements: elements}
}

// programMessages is the approximate number of messages for a table and its program.
const programMessages = 64

// KeptBatch limits the memory in bytes that a batch keeps for the next one.
const KeptBatch = 1 << 20

// Load counts the elements that the plan adds and deletes, and their bytes.
func (p *Plan) Load() (elements, bytes int) {
	for _, t := range p.Tables {
		for _, ops := range t.Ops {
			elements += ops.del.Len + ops.Add.Len
			bytes += ops.del.Size + ops.Add.Size
		}
	}

	return elements, bytes
}

// Writers are the writers of all tables. The writer of a table numbers all its anonymous sets.
type Writers map[*nft.Family]nft.Writer

// Encode appends the plan to a batch.
func (p *Plan) Encode(b *rawnl.Batch) {
	if _, n := p.Load(); n > KeptBatch {
		b.Grow(programMessages*len(p.Tables), n+n/64)
	}
	to := Writers{}
	for _, f := range nft.Families {
		if p.writes(f) {
			to[f] = nft.NewEncoder(b, f, p.Table)
		}
	}

	p.Write(to)
}

// writes reports whether the plan has messages for the table of a family.
func (p *Plan) writes(f *nft.Family) bool {
	return f == p.Have.Home || f == p.Next.Home ||
		slices.ContainsFunc(p.Tables, func(t *TablePlan) bool {
			return t.Family == f && (!t.Empty() || len(t.flushed) > 0)
		})
}

// String is the plan in nft's language, in the order in which it is sent.
func (p *Plan) String() string {
	var b strings.Builder
	to := Writers{}
	for _, f := range nft.Families {
		to[f] = nft.NewText(&b, f, p.Table)
	}
	p.Write(to)
	for _, line := range p.Sysctls.Lines() {
		fmt.Fprintf(&b, "# sysctl %s\n", line)
	}
	for _, f := range p.Forget {
		fmt.Fprintf(&b, "# forget clients of %s\n", f)
	}
	return b.String()
}

// Write writes the next number of the version, the plans of all tables, and the next epoch if it
// begins. The number comes first, even if the epoch ends or its table is deleted: the message with
// the number fails if another writer has committed.
func (p *Plan) Write(to Writers) {
	if p.Empty() {
		return
	}
	have, next := p.Have, p.Next
	if have.Number != 0 {
		to[have.Home].Elements(nft.Add, form.VersionSet(have.Epoch), next.Elem(have.Number+1))
	}

	for _, t := range p.Tables {
		if !t.Empty() || len(t.flushed) > 0 {
			t.write(to[t.Family])
		}
	}

	// The base chains of new tables come last, because packets pass a table as soon as it has base
	// chains. A large new instance is written in steps.
	for _, t := range p.Tables {
		if t.Create {
			_, base := t.Program.Base()
			base.Write(to[t.Family])
		}
	}

	if next.Home == nil || have.Number != 0 && next.Epoch == have.Epoch {
		return
	}
	if have.Number != 0 && !p.anew {
		to[have.Home].DeleteSet(form.VersionSet(have.Epoch))
	}
	w := to[next.Home]
	w.AddSet(form.VersionSet(next.Epoch))
	w.Elements(nft.Add, form.VersionSet(next.Epoch), next.Elem(next.Number))
}

// write writes the plan of one table, except the base chains of a new table.
func (t *TablePlan) write(w nft.Writer) {
	if t.rebuild {
		w.DeleteTable()
	}
	if t.Create {
		w.AddTable()
	}
	if t.Renew {
		t.writeRenewal(w)
	}
	for _, s := range t.NewSets {
		w.AddSet(s)
	}

	// When a chain begins to use a map, the kernel walks all elements of the map
	// (nf_tables_bind_set). So the rules come before the elements.
	if t.Program != nil || t.goneChains != nil {
		t.writeProgram(w)
	}
	if !t.Renew {
		for _, s := range t.flushed {
			w.FlushSet(s)
		}
	}

	for _, s := range slices.Concat(t.Sets, t.goneSets) {
		if ops := t.Ops[s.Name]; ops != nil {
			w.Elements(nft.Delete, s, &ops.del)
		}
	}

	for _, s := range t.Sets {
		if ops := t.Ops[s.Name]; ops != nil {
			w.Elements(nft.Add, s, &ops.Add)
		}
	}

	if t.Renew {
		return
	}
	for _, name := range t.goneChains {
		w.DeleteChain(name)
	}
	for _, s := range t.goneSets {
		w.DeleteSet(s)
	}
}

// writeRenewal deletes the rules, elements and objects of a table, except the ones to keep. Later
// messages of the same transaction can create objects with the same names.
func (t *TablePlan) writeRenewal(w nft.Writer) {
	for _, name := range slices.Sorted(maps.Keys(t.Have.Held.Chains)) {
		if !t.Hooks.IsUsers(name) || slices.Contains(t.goneChains, name) {
			w.FlushChain(name)
		}
	}

	for _, s := range slices.Concat(t.flushed, t.goneSets) {
		w.FlushSet(s)
	}
	for _, s := range t.goneSets {
		w.DeleteSet(s)
	}
	for _, name := range t.goneChains {
		w.DeleteChain(name)
	}
}

// writeProgram replaces the chains and rules with the new program. Chains that are no longer needed
// are deleted later, after the last element that refers to them.
func (t *TablePlan) writeProgram(w nft.Writer) {
	if t.Create {
		others, _ := t.Program.Base()
		others.Write(w)
		return
	}

	t.Program.WriteChains(w)
	if !t.Renew {
		for _, c := range t.Hooks.Own(t.Program) {
			w.FlushChain(c.Name)
		}
		for _, name := range t.goneChains {
			w.FlushChain(name)
		}
	}

	t.Program.WriteRules(w)
}
