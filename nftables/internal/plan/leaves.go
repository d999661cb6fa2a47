package plan

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// planLeaves plans the leaves of a table that is kept. If other owners may need leaves, all leaves
// stay. Otherwise unneeded leaves are removed: leaves of InTurn always, and the other leaves only
// when the program is rewritten, because there are few of them. It returns the leaves that are
// kept.
func (pl *Planner) planLeaves(p *Plan, t *TablePlan) []string {
	have := t.Have.Shape.Leaves
	if t.Have.Leads == nil {
		t.next.Leads = map[string]int{}
		for fe := range form.FrontendsOf(p.Changes.Old, t.Family) {
			pl.Writer.Frontend(p.Changes.Old, fe, func(_ string, e nft.Elem) {
				if e.Goto {
					t.next.Leads[string(e.Data)]++
				}
			})
		}
	}

	if len(t.leads) == 0 {
		return have
	}
	leaves := slices.Clone(have)
	for name, n := range t.leads {
		if n > 0 {
			leaves = form.Insert(leaves, name, strings.Compare)
		}
	}

	leaves = slices.DeleteFunc(leaves, func(name string) bool {
		if pl.Owning != nil || t.leadsTo(name) {
			return false
		}
		leaf, _ := form.ParseLeaf(name)
		return leaf.Way == form.InTurn
	})
	if slices.Equal(leaves, have) {
		return have
	}
	added := slices.DeleteFunc(slices.Clone(leaves), func(name string) bool {
		_, made := slices.BinarySearch(have, name)
		return made
	})
	for _, name := range have {
		if _, stays := slices.BinarySearch(leaves, name); !stays {
			t.goneChains = append(t.goneChains, name)
		}
	}

	t.Program, t.next.Shape.Leaves = form.LeafChains(t.Family, &t.Have.Shape, added), leaves
	return leaves
}
