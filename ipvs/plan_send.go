package ipvs

import (
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
)

// encode appends the messages about the companion tables.
func (p *plan) encode(b *nfnl.Batch) {
	for i, f := range families {
		tp := &p.tables[i]
		e := &encoder{b: b, f: f, table: p.table}
		if tp.rebuild {
			e.delTable()
		}
		if tp.create {
			e.newTable()
			for _, s := range tp.sets {
				e.newSet(s)
			}
		}
		for _, s := range tp.sets {
			if l := tp.del[s.name]; l != nil {
				e.elements(s.name, l, true)
			}
		}
		for _, s := range tp.sets {
			if l := tp.add[s.name]; l != nil {
				e.elements(s.name, l, false)
			}
		}
		if tp.create {
			e.program(tp.program)
		}
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
