package ipvs

import (
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// batch returns the messages of one of the transactions. They are encoded once, because Commit
// counts them before it sends them. So the stage must be complete.
func (p *plan) batch(s int) *rawnl.Batch {
	if p.batches[s] == nil {
		p.batches[s] = &rawnl.Batch{}
		for i, f := range nft.Families {
			p.stages[s][i].write(nft.NewEncoder(p.batches[s], f, p.name), f)
		}
	}
	return p.batches[s]
}

// write writes the changes of a companion table. It deletes the version first, even if it then
// deletes the table: if the version does not exist, another writer has committed.
func (tp *tablePlan) write(w nft.Writer, f *nft.Family) {
	if l := tp.del[setVersion]; l != nil {
		w.DeleteElements(versionSet, l)
	}
	for _, s := range setsOf(f) {
		if l := tp.del[s.Name]; l != nil && s != versionSet {
			w.DeleteElements(s, l)
		}
	}
	if tp.remove {
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
		tp.program.Write(w)
	}
}

// Stats counts what the plan sends.
func (p *plan) Stats() dataplane.Stats {
	commands := len(p.up) + len(p.down)
	var s dataplane.Stats
	for i := range p.stages {
		b := p.batch(i)
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

// countOf counts the elements of a list, without versions.
func countOf(set string, l *nft.ElemList) int {
	if set == setVersion {
		return 0
	}
	return l.Len
}
