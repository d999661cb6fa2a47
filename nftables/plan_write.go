package nftables

import (
	"fmt"
	"maps"
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
	elements, _ := p.load()
	return dataplane.Stats{Messages: b.Len(), Bytes: len(b.Bytes()), Elements: elements}
}

// programMessages is roughly the number of messages for a table and its program.
const programMessages = 64

// keptBatch is how many bytes of memory a batch may keep for the next one.
const keptBatch = 1 << 20

// load counts the elements that the plan adds and deletes, and their bytes.
func (p *plan) load() (elements, bytes int) {
	for _, t := range p.tables {
		for _, ops := range t.ops {
			elements += ops.del.Len + ops.add.Len
			bytes += ops.del.Size + ops.add.Size
		}
	}
	return elements, bytes
}

// writers are the writers of all tables. One writer numbers all anonymous sets of its table.
type writers map[*nft.Family]nft.Writer

// encode appends the plan to a batch.
func (p *plan) encode(b *rawnl.Batch) {
	if _, n := p.load(); n > keptBatch {
		b.Grow(programMessages*len(p.tables), n+n/64)
	}
	to := writers{}
	for _, f := range nft.Families {
		to[f] = nft.NewEncoder(b, f, p.table)
	}
	p.write(to)
}

// String is the plan in nft's language, in the order in which it is sent.
func (p *plan) String() string {
	var b strings.Builder
	to := writers{}
	for _, f := range nft.Families {
		to[f] = nft.NewText(&b, f, p.table)
	}
	p.write(to)
	if p.sysctl != "" {
		fmt.Fprintf(&b, "# sysctl %s\n", p.sysctl)
	}
	for _, f := range p.forget {
		fmt.Fprintf(&b, "# forget clients of %s\n", f)
	}
	return b.String()
}

// write writes the next number of the version, the plans of all tables, and the next epoch if one
// begins. The number comes first, even if the epoch ends or its table is deleted, because this
// message fails if another writer has committed.
func (p *plan) write(to writers) {
	if p.empty() {
		return
	}
	have, next := p.have, p.next
	if have.number != 0 {
		to[have.home].Elements(nft.Add, versionSet(have.epoch), next.elem(have.number+1))
	}

	for _, t := range p.tables {
		if !t.empty() || len(t.flushed) > 0 {
			t.write(to[t.f])
		}
	}
	// The base chains of new tables come last, because packets meet a table from then on: see
	// [steps].
	for _, t := range p.tables {
		if t.create {
			_, base := t.program.Base()
			base.Write(to[t.f])
		}
	}

	if next.home == nil || have.number != 0 && next.epoch == have.epoch {
		return
	}
	if have.number != 0 && !p.anew {
		to[have.home].DeleteSet(versionSet(have.epoch))
	}
	w := to[next.home]
	w.AddSet(versionSet(next.epoch))
	w.Elements(nft.Add, versionSet(next.epoch), next.elem(next.number))
}

// write writes the plan of one table, except the base chains of a new one.
func (t *tablePlan) write(w nft.Writer) {
	if t.rebuild {
		w.DeleteTable()
	}
	if t.create {
		w.AddTable()
	}
	if t.renew {
		t.writeRenewal(w)
	}
	for _, s := range t.newSets {
		w.AddSet(s)
	}
	// When a chain begins to ask a map, the kernel walks all elements of the map
	// (nf_tables_bind_set). So the rules come before the elements.
	if t.program != nil || t.goneChains != nil {
		t.writeProgram(w)
	}
	if !t.renew {
		for _, s := range t.flushed {
			w.FlushSet(s)
		}
	}
	for _, s := range slices.Concat(t.sets, t.goneSets) {
		if ops := t.ops[s.Name]; ops != nil {
			w.Elements(nft.Delete, s, &ops.del)
		}
	}
	for _, s := range t.sets {
		if ops := t.ops[s.Name]; ops != nil {
			w.Elements(nft.Add, s, &ops.add)
		}
	}
	if t.renew {
		return
	}
	for _, name := range t.goneChains {
		w.DeleteChain(name)
	}
	for _, s := range t.goneSets {
		w.DeleteSet(s)
	}
}

// writeRenewal deletes the rules, elements and objects that a table holds, except what stays.
// Objects of the same names can come afterwards, in the same transaction.
func (t *tablePlan) writeRenewal(w nft.Writer) {
	for _, name := range slices.Sorted(maps.Keys(t.have.held.chains)) {
		if !t.place.isUsers(name) || slices.Contains(t.goneChains, name) {
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

// writeProgram replaces the chains and rules by the new program. The chains that are no longer
// needed are deleted later, when no element leads to them any more.
func (t *tablePlan) writeProgram(w nft.Writer) {
	if t.create {
		others, _ := t.program.Base()
		others.Write(w)
		return
	}
	t.program.WriteChains(w)
	if !t.renew {
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
