package ipvs

import (
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// encode appends the messages about the companion tables in one of the transactions.
func (p *plan) encode(b *rawnl.Batch, s int) {
	for i, f := range nft.Families {
		p.stages[s][i].write(nft.NewEncoder(b, f, p.name), f)
	}
}

// write writes what is done to a companion table. The version is deleted first, also if the table
// is deleted then: if it is not there, another writer was.
func (tp *tablePlan) write(w nft.Writer, f *nft.Family) {
	if l := tp.del[setVersion]; l != nil {
		w.DeleteElements(versionSet, l)
	}
	for _, s := range setsOf(f) {
		if l := tp.del[s.Name]; l != nil && s != versionSet {
			w.DeleteElements(s, l)
		}
	}
	if tp.rebuild {
		w.DeleteTable()
	}
	if tp.create {
		w.AddTable()
		for _, s := range tp.sets {
			w.AddSet(s)
		}
	}
	for _, s := range setsOf(f) {
		if l := tp.add[s.Name]; l != nil {
			w.AddElements(s, l)
		}
	}
	if tp.create {
		tp.program.WriteChains(w)
		tp.program.WriteRules(w)
	}
}

// Stats counts what the plan sends.
func (p *plan) Stats() dataplane.Stats {
	var b rawnl.Batch
	commands := len(p.up) + len(p.down)
	var s dataplane.Stats
	for i := range p.stages {
		b.Reset()
		p.encode(&b, i)
		s.Messages += b.Len()
		s.Bytes += len(b.Bytes())
		for j := range p.stages[i] {
			for set, l := range p.stages[i][j].add {
				s.Elements += countOf(set, l)
			}
			for set, l := range p.stages[i][j].del {
				s.Elements += countOf(set, l)
			}
		}
	}
	s.Messages += commands + p.device.len()
	s.Elements += commands
	return s
}

// countOf counts the elements of a list, apart from versions.
func countOf(set string, l *nft.ElemList) int {
	if set == setVersion {
		return 0
	}
	return l.Len
}
