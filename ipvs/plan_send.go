package ipvs

import (
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// encode appends the messages about the companion tables.
func (p *plan) encode(b *nfnl.Batch) {
	for i, f := range nftwire.Families {
		p.tables[i].write(nftwire.NewEncoder(b, f, p.table))
	}
}

// write writes what is done to a companion table.
func (tp *tablePlan) write(w nftwire.Writer) {
	if tp.rebuild {
		w.DeleteTable()
	}
	if tp.create {
		w.AddTable()
		for _, s := range tp.sets {
			w.AddSet(s)
		}
	}
	for _, s := range tp.sets {
		if l := tp.del[s.Name]; l != nil {
			w.DeleteElements(s, l)
		}
	}
	for _, s := range tp.sets {
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
	var b nfnl.Batch
	p.encode(&b)
	s := dataplane.Stats{Messages: b.Len() + len(p.up) + len(p.down) + p.device.len(), Bytes: len(b.Bytes()), Elements: len(p.up) + len(p.down)}
	for i := range p.tables {
		for _, l := range p.tables[i].add {
			s.Elements += l.Len
		}
		for _, l := range p.tables[i].del {
			s.Elements += l.Len
		}
	}
	return s
}
