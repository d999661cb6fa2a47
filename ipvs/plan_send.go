package ipvs

import (
	"fmt"
	"strings"

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
	s := dataplane.Stats{Messages: b.Len() + len(p.up) + len(p.down), Bytes: len(b.Bytes()), Elements: len(p.up) + len(p.down)}
	for i := range p.tables {
		for _, l := range p.tables[i].add {
			s.Elements += l.n
		}
		for _, l := range p.tables[i].del {
			s.Elements += l.n
		}
	}
	return s
}

// String is the plan: virtual servers and destinations one a line, and how many elements of which sets change.
func (p *plan) String() string {
	var s strings.Builder
	ops := func(l []op) {
		for _, o := range l {
			fmt.Fprintf(&s, "%v %v", o.cmd, o.svc.ServiceKey)
			if o.svc.Scheduler != "" {
				fmt.Fprintf(&s, " scheduler %s", o.svc.Scheduler)
			}
			if o.dest.Addr.IsValid() {
				fmt.Fprintf(&s, " destination %v weight %d %v", o.dest.DestinationKey, o.dest.Weight, o.dest.Forward)
			}
			s.WriteByte('\n')
		}
	}
	ops(p.up)
	for i, f := range families {
		tp := &p.tables[i]
		if tp.rebuild {
			fmt.Fprintf(&s, "delete table %s %s\n", f.name, p.table)
		}
		if tp.create {
			fmt.Fprintf(&s, "add table %s %s\n", f.name, p.table)
			for _, c := range tp.program {
				for _, r := range c.rules {
					fmt.Fprintf(&s, "add rule %s %s %s %s\n", f.name, p.table, c.name, r.text)
				}
			}
		}
		for _, set := range tp.sets {
			if l := tp.del[set.name]; l != nil {
				fmt.Fprintf(&s, "delete element %s %s %s # %d\n", f.name, p.table, set.name, l.n)
			}
			if l := tp.add[set.name]; l != nil {
				fmt.Fprintf(&s, "add element %s %s %s # %d\n", f.name, p.table, set.name, l.n)
			}
		}
	}
	ops(p.down)
	return s.String()
}
