package plan

import (
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// planBlocks plans the blocks of ranges that are kept. Their elements depend on the other ranges at
// the address. If two ranges have a block in common, only the first one has an element for the
// block. Of two overlapping ranges, the later one contains an end of the earlier one. So a search
// at both ends of a changed range finds all affected ranges.
func (pl *Planner) planBlocks(c *servicemodel.ChangeSet, t *TablePlan) {
	var stay []servicemodel.FrontendKey
	note := func(l ...*servicemodel.Frontend) {
		for _, fe := range l {
			if fe != nil && c.Old.Frontend(fe.Key) != nil && c.New.Frontend(fe.Key) != nil {
				stay = form.Insert(stay, fe.Key, servicemodel.FrontendKey.Compare)
			}
		}
	}

	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			fe = fc.Old
		}
		k := fe.Key
		if k.EndPort == 0 || k.Family() != t.Family.Model || fc.Old != nil && fc.New != nil {
			continue
		}
		for _, table := range []*servicemodel.Table{c.Old, c.New} {
			note(table.RangesAt(k.Addr, k.Protocol, k.Port)...)
			note(table.RangesAt(k.Addr, k.Protocol, k.EndPort)...)
			note(table.FirstRange(k.Addr))
		}
	}

	for _, k := range stay {
		t.differ(func(to form.Sink) { pl.Writer.Blocks(c.Old, c.Old.Frontend(k), to) },
			func(to form.Sink) { pl.Writer.Blocks(c.New, c.New.Frontend(k), to) })
	}
}

// rangePorts plans the ports of the endpoints of a range that is kept.
func (pl *Planner) rangePorts(p *Plan, t *TablePlan, old, new *servicemodel.Frontend) {
	if new.Key.EndPort == 0 {
		return
	}
	was, _ := form.RangePort(p.Changes.Old.PoolsOf(old))
	is, _ := form.RangePort(p.Changes.New.PoolsOf(new))
	if was == is && old.Shifted == new.Shifted {
		return
	}
	t.need.AddFrontend(p.Changes.New, new)
	t.differ(func(to form.Sink) { pl.Writer.RangePorts(p.Changes.Old, old, to) },
		func(to form.Sink) { pl.Writer.RangePorts(p.Changes.New, new, to) })
}
