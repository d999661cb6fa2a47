package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

var _ dataplane.Plan = (*plan)(nil)

// Stats counts the messages and bytes of the plan.
func (p *plan) Stats() dataplane.Stats {
	var b rawnl.Batch
	p.encode(&b)
	return dataplane.Stats{Messages: b.Len(), Bytes: len(b.Bytes()), Elements: p.elements()}
}

// elements counts the elements that the plan adds and deletes.
func (p *plan) elements() (n int) {
	for _, t := range p.tables {
		n += t.elements()
	}
	return n
}

// programMessages is roughly the number of messages for a table and its program.
const programMessages = 64

// keptBatch is how many bytes of memory a batch may keep for the next one.
const keptBatch = 1 << 20

// size estimates the size of the plan in bytes.
func (p *plan) size() int {
	n := 0
	for _, t := range p.tables {
		for _, ops := range t.ops {
			n += ops.del.Size() + ops.add.Size()
		}
	}
	return n
}

// encode appends the plan to a batch.
func (p *plan) encode(b *rawnl.Batch) {
	if n := p.size(); n > keptBatch {
		b.Grow(programMessages*len(p.tables), n+n/64)
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

// write writes the plans of all tables. It writes the version first, even if the epoch ends or its
// table is deleted, because this message fails if another writer has committed.
func (p *plan) write(to func(f *nft.Family) nft.Writer) {
	if p.empty() {
		return
	}
	old := versionSet(p.have.epoch)
	var home nft.Writer
	if p.have.number != 0 {
		home = to(p.have.home)
		home.AddElements(old, p.next.elem(p.have.number+1))
	}
	for _, t := range p.tables {
		switch {
		case t.empty() && len(t.flushed) == 0:
		case t.f == p.have.home && home != nil:
			t.write(home)
		default:
			t.write(to(t.f))
		}
	}
	if p.have.number != 0 && p.next.epoch == p.have.epoch {
		return
	}
	if p.have.number != 0 && !p.losesVersion() {
		home.DeleteSet(old)
	}
	w := to(p.next.home)
	w.AddSet(versionSet(p.next.epoch))
	w.AddElements(versionSet(p.next.epoch), p.next.elem(p.next.number))
}

// write writes the plan of one table.
func (t *tablePlan) write(w nft.Writer) {
	if t.rebuild {
		w.DeleteTable()
	}
	if t.create {
		w.AddTable()
	}
	for _, s := range t.newSets {
		w.AddSet(s)
	}
	// When a chain begins to ask a map, the kernel walks all elements of the map
	// (nf_tables_bind_set). So the rules come before the elements.
	if t.program != nil || t.goneChains != nil {
		t.writeProgram(w)
	}
	for _, s := range t.flushed {
		w.FlushSet(s)
	}
	for _, s := range slices.Concat(t.sets, t.goneSets) {
		if ops := t.ops[s.Name]; ops != nil {
			w.DeleteElements(s, &ops.del)
		}
	}
	for _, s := range t.sets {
		if ops := t.ops[s.Name]; ops != nil {
			w.AddElements(s, &ops.add)
		}
	}
	for _, name := range t.goneChains {
		w.DeleteChain(name)
	}
	for _, s := range t.goneSets {
		w.DeleteSet(s)
	}
}

// writeProgram replaces the chains and rules by the new program. The chains that are no longer
// needed are deleted later, when no element leads to them any more.
func (t *tablePlan) writeProgram(w nft.Writer) {
	t.program.WriteChains(w)
	if !t.create {
		for _, c := range t.place.own(t.program) {
			w.FlushChain(c.Name)
		}
		for _, name := range t.goneChains {
			w.FlushChain(name)
		}
	}
	t.program.WriteRules(w)
}

func (f forget) String() string {
	s, lost := f.frontend.Key.String(), slices.Concat(f.lost[0], f.lost[1])
	if len(lost) > 0 {
		s += " given"
	}
	slices.SortFunc(lost, netip.AddrPort.Compare)
	for _, ep := range slices.Compact(lost) {
		s += " " + ep.String()
	}
	return s
}
