package plan

import (
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Removes reports whether a change set of parts removes them by [Planner.Removal]: the last parts,
// or parts of another layout.
func (pl *Planner) Removes(c *servicemodel.ChangeSet) bool {
	return c.New.Rules().MasqueradeMark == 0
}

// Removal plans the deletion of the elements in the drift of tables of another layout. If no
// frontends are left, it plans the deletion of the tables.
func (pl *Planner) Removal(left int) *Plan {
	p := &Plan{Table: pl.Table, Have: pl.Version, Next: pl.Version.Next(false, pl.Version.Home,
		pl.FirstEpoch, pl.Version.Unswept, false)}
	if left == 0 {
		p.Next.Home = nil // the epoch is removed with its table
	}
	for _, have := range pl.Tables {
		if !have.Exists {
			continue
		}
		t := &TablePlan{Family: have.Family, rebuild: left == 0, Ops: map[string]*SetOps{}}
		p.Tables = append(p.Tables, t)
		for _, name := range slices.Sorted(maps.Keys(have.Drift)) {
			if l := have.Drift[name]; left > 0 && l.Len > 0 {
				t.Sets = append(t.Sets, &nft.Set{Name: name})
				t.Ops[name] = &SetOps{del: *l}
			}
		}
	}

	return p
}
