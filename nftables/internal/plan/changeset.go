package plan

import (
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Plan returns the plan for a change set.
func (pl *Planner) Plan(c *servicemodel.ChangeSet) *Plan {
	p := &Plan{Table: pl.Table, Changes: c, Have: pl.Version,
		Tables: make([]*TablePlan, 0, len(pl.Tables))}
	rules := c.New.Rules()
	p.Sysctls = pl.Sysctls.Plan(sysctls.Loopback(&rules))
	for _, have := range pl.Tables {
		t := newTablePlan(&pl.Hooks, have)
		p.Tables = append(p.Tables, t)
		switch {
		case t.Have.Exists && !t.Family.ServedBy(&rules):
			t.rebuild, t.next = true, form.Skeleton{}
		case t.Have.Exists && !t.Have.Broken:
			pl.planChange(p, t)
		case t.Have.Exists, slices.Contains(pl.TablesToMake(c), t.Have):
			pl.planWhole(p, t)
		}
	}

	// features that few services use
	if pl.Owning != nil || pl.Version.Owners {
		pl.planOwners(p)
	}
	if slices.ContainsFunc(pl.Tables, func(t *Table) bool { return len(t.Shape.Affinity) > 0 }) {
		pl.planForgetting(p)
	}

	var home *nft.Family // has the version: the present one, or the first with a table
	for _, t := range p.Tables {
		if t.Create || t.Renew {
			t.size(pl.Capacity)
		}
		p.anew = p.anew || t.Family == p.Have.Home && t.rebuild
		if t.next.Exists && (home == nil || t.Family == p.Have.Home) {
			home = t.Family
		}
	}

	unswept := pl.Version.Unswept || p.leavesClients || p.spares()
	p.Next = pl.Version.Next(p.anew, home, pl.FirstEpoch, unswept, pl.Owning != nil)
	return p
}

// PlanAhead returns the plan that prepares the tables for a change set, or nil if none is needed. A
// packet in flight may match the rules from before a commit and the elements from after it. If
// these rules do not know the new way of a pool, the packet would find no endpoint. So a separate
// transaction adds the rules first.
func (pl *Planner) PlanAhead(c *servicemodel.ChangeSet) (p *Plan) {
	needed := false
	for _, pc := range c.Pools {
		if pc.Old == nil || pc.New == nil || form.WayOf(pc.Old) == form.WayOf(pc.New) {
			continue
		}
		t := pl.Tables[slices.IndexFunc(pl.Tables, func(t *Table) bool {
			return t.Family.Model == pc.New.ID.Family
		})]
		t.ahead |= form.WayOf(pc.New)
		needed = needed || t.Exists && !t.Broken && t.ahead&^t.Shape.Uses != 0
	}

	if needed {
		p = pl.Plan(servicemodel.Diff(c.Old, c.Old))
	}
	for _, t := range pl.Tables {
		t.ahead = 0
	}
	return p
}
