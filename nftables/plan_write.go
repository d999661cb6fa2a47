package nftables

import (
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

var _ dataplane.Plan = (*plan)(nil)

// Stats counts what the plan sends.
func (p *plan) Stats() dataplane.Stats {
	var b rawnl.Batch
	p.encode(&b)
	return dataplane.Stats{Messages: b.Len(), Bytes: len(b.Bytes()), Elements: p.elements()}
}

// elements counts the elements and rules that the plan adds and deletes one by one.
func (p *plan) elements() int {
	n := 0
	for i := range p.families {
		fp := &p.families[i]
		for _, ops := range fp.ops {
			n += ops.del.Len + ops.add.Len
		}
		n += len(fp.newRules)
	}
	return n
}

// programMessages is about how many messages make a table and its program.
const programMessages = 64

// keptBatch is how many bytes of memory are kept for the next batch.
const keptBatch = 1 << 20

// size is about how many bytes the plan takes.
func (p *plan) size() int {
	n := 0
	for i := range p.families {
		for _, ops := range p.families[i].ops {
			n += ops.del.Size() + ops.add.Size()
		}
	}
	return n
}

// encode appends the plan to a batch.
func (p *plan) encode(b *rawnl.Batch) {
	if n := p.size(); n > keptBatch {
		b.Grow(programMessages*len(p.families), n+n/64)
	}
	p.write(func(f *nft.Family) nft.Writer { return nft.NewEncoder(b, f, p.table) })
}

// String is the plan in nft's language, in the order in which it is sent.
func (p *plan) String() string {
	var b strings.Builder
	p.write(func(f *nft.Family) nft.Writer { return nft.NewText(&b, f, p.table) })
	if p.sysctl != "" {
		fmt.Fprintf(&b, "# sysctl %s\n", p.sysctl)
	}
	for _, f := range p.forget {
		fmt.Fprintf(&b, "# forget clients of %s\n", f)
	}
	return b.String()
}

// write writes what is done to both tables. The next number of the epoch goes first, also if that
// ends, or the table that has it is deleted: it fails if others have committed.
func (p *plan) write(to func(f *nft.Family) nft.Writer) {
	if p.empty() {
		return
	}
	w, old := to(nft.IPv4), versionSet(p.have.epoch)
	if p.have.number != 0 {
		w.AddElements(old, p.next.elem(p.have.number+1))
	}
	for i := range p.families {
		if fp := &p.families[i]; fp.f != nil {
			fp.write(to(fp.f))
		}
	}
	if p.have.number != 0 && p.next.epoch == p.have.epoch {
		return
	}
	if p.have.number != 0 && !p.families[0].create {
		w.DeleteSet(old)
	}
	w.AddSet(versionSet(p.next.epoch))
	w.AddElements(versionSet(p.next.epoch), p.next.elem(p.next.number))
}

// write writes what is done to one table.
func (fp *familyPlan) write(w nft.Writer) {
	if fp.rebuild {
		w.DeleteTable()
	}
	if fp.create {
		w.AddTable()
	}
	for _, s := range fp.newSets {
		w.AddSet(s)
	}
	for _, s := range fp.flushed {
		w.FlushSet(s)
	}
	for _, s := range fp.sets {
		if ops := fp.ops[s.Name]; ops != nil {
			w.DeleteElements(s, &ops.del)
		}
	}
	for _, s := range fp.sets {
		if ops := fp.ops[s.Name]; ops != nil {
			w.AddElements(s, &ops.add)
		}
	}
	if fp.program != nil {
		fp.writeProgram(w)
	}
	for i := range fp.newRules {
		w.AddRule(fp.newRules[i].chain, fp.newRules[i].rule)
	}
	for _, s := range fp.goneSets {
		w.DeleteSet(s)
	}
}

// writeProgram writes the program, in place of the one that is there. Chains go last, when no rule
// jumps to them any more.
func (fp *familyPlan) writeProgram(w nft.Writer) {
	fp.program.WriteChains(w)
	if !fp.create {
		for i := range fp.program {
			w.FlushChain(fp.program[i].Name)
		}
		for _, name := range fp.goneChains {
			w.FlushChain(name)
		}
	}
	fp.program.WriteRules(w)
	for _, name := range fp.goneChains {
		w.DeleteChain(name)
	}
}

func (f forget) String() string {
	s := f.frontend.Key.String()
	switch {
	case len(f.endpoints) == 0:
		return s
	case f.others:
		s += " given others than"
	default:
		s += " given"
	}
	for _, ep := range f.endpoints {
		s += " " + ep.String()
	}
	return s
}
