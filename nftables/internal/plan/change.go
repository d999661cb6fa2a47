package plan

import (
	"slices"

	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// planChange plans the differences in an existing table.
func (pl *Planner) planChange(p *Plan, t *TablePlan) {
	if t.Sets = t.Have.sets; t.Sets == nil {
		t.Sets = form.SetsOf(t.Family, &t.Have.Shape)
	}
	for name, l := range t.Have.Drift {
		l.Each(t.OpsOf(name).del.Add)
	}
	changes(p.Changes, t.Family, func(old, new *servicemodel.Frontend) {
		switch {
		case new == nil:
			pl.Writer.Elements(p.Changes.Old, old, t.del)
		case old == new:
			pl.poolsChanged(p, t, new)
		case old == nil:
			t.need.AddFrontend(p.Changes.New, new)
			pl.Writer.Elements(p.Changes.New, new, t.add)
		default:
			t.need.AddFrontend(p.Changes.New, new)
			pl.changed(p, t, old, new)
		}
	})

	pl.planBlocks(p.Changes, t)
	addresses := [][]servicemodel.AddrChange{p.Changes.ClusterIPs, p.Changes.Hairpins}
	if pl.Owning != nil {
		addresses = nil // they are counted in the index of owners
	}
	for i, l := range addresses {
		for _, ac := range l {
			switch {
			case servicemodel.FamilyOf(ac.Addr) != t.Family.Model:
			case ac.Added:
				pl.Writer.Address(form.AddressSets[i], ac.Addr, t.add)
			default:
				pl.Writer.Address(form.AddressSets[i], ac.Addr, t.del)
			}
		}
	}

	if r := p.Changes.Rules; r != nil {
		pl.Writer.Settings(*r.Old, pl.Sysctls.Records, t.del)
		pl.Writer.Settings(*r.New, p.Sysctls.Records, t.add)
	}

	leaves := t.Have.Shape.Leaves
	if t.leads != nil || t.Have.Shape.Has(form.Ways) {
		leaves = pl.planLeaves(p, t)
	}
	have := &t.Have.Shape
	lacks := t.need.Uses&^have.Uses != 0 ||
		slices.ContainsFunc(t.need.Affinity, func(a form.Affinity) bool {
			return !slices.Contains(have.Affinity, a)
		})
	if lacks || t.Have.Stale || p.Changes.Rules != nil {
		pl.reshape(p, t, leaves)
	}
}

// changed plans a changed frontend.
func (pl *Planner) changed(p *Plan, t *TablePlan, old, new *servicemodel.Frontend) {
	t.differ(func(to form.Sink) { pl.Writer.Frontend(p.Changes.Old, old, to) },
		func(to form.Sink) { pl.Writer.Frontend(p.Changes.New, new, to) })
	oldInternal, oldExternal := p.Changes.Old.PoolsOf(old)
	newInternal, newExternal := p.Changes.New.PoolsOf(new)
	pl.Writer.Pool(old, new, false, oldInternal, newInternal, t.del, t.add)
	pl.Writer.Pool(old, new, true, oldExternal, newExternal, t.del, t.add)
	pl.rangePorts(p, t, old, new)
}

// poolsChanged plans the pools of an unchanged frontend.
func (pl *Planner) poolsChanged(p *Plan, t *TablePlan, fe *servicemodel.Frontend) {
	oldInternal, oldExternal := p.Changes.Old.PoolsOf(fe)
	newInternal, newExternal := p.Changes.New.PoolsOf(fe)
	change := func(outside bool, old, new *servicemodel.Pool) {
		if old == nil || old.Equal(new) {
			return
		}
		sameVerdict := form.WayOf(old)|form.WayOf(new) == form.AtRandom &&
			// packets find the size of both pools in the same sets
			form.ClassOf(form.EntryCount(old)) == form.ClassOf(form.EntryCount(new))
		if !sameVerdict {
			t.need.AddPool(new)
			t.differ(func(to form.Sink) { pl.Writer.PoolVerdict(fe, outside, old, to) },
				func(to form.Sink) { pl.Writer.PoolVerdict(fe, outside, new, to) })
		}

		pl.Writer.Pool(fe, fe, outside, old, new, t.del, t.add)
	}

	change(false, oldInternal, newInternal)
	change(true, oldExternal, newExternal)
	pl.rangePorts(p, t, fe, fe)
}
