package plan

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// reshape rewrites the chains whose rules differ for the features that are needed now. It deletes
// sets that no rule needs any more.
func (pl *Planner) reshape(p *Plan, t *TablePlan, leaves []string) {
	t.needAll(p.Changes.New)
	t.need.Uses |= t.Have.ahead
	t.need.Leaves = slices.DeleteFunc(slices.Clone(leaves), func(name string) bool {
		return pl.Owning == nil && !t.leadsTo(name)
	})
	if pl.Owning != nil { // the needs of other owners are unknown
		t.need.Add(&t.Have.Shape)
	}
	old := t.Sets
	t.Sets = form.SetsOf(t.Family, &t.need)
	t.NewSets, t.goneSets = missing(t.Sets, old), missing(old, t.Sets)
	for _, s := range t.goneSets {
		// Deleting a set deletes its elements. But a chain cannot be deleted while elements of a
		// deleted set refer to it (before Linux 6.4, nft_map_deactivate).
		if !s.LeadsToChains() {
			delete(t.Ops, s.Name)
		}
	}

	before := pl.Hooks.Program(t.Family, p.Changes.Old.Rules(), &t.Have.Shape)
	t.Program = pl.Hooks.Program(t.Family, p.Changes.New.Rules(), &t.need)
	t.goneChains = nil
	for _, c := range before {
		if !t.Program.Has(c.Name) {
			t.goneChains = append(t.goneChains, c.Name)
		}
	}

	if !t.Have.Stale {
		t.Program = changedChains(before, t.Program)
	}
	t.next.Shape, t.next.Stale = t.need, false
}

func missing(from, in []*nft.Set) []*nft.Set {
	return slices.DeleteFunc(slices.Clone(from), func(s *nft.Set) bool {
		return slices.ContainsFunc(in, func(o *nft.Set) bool { return o.Name == s.Name })
	})
}

// changedChains returns the new and changed chains of a program.
func changedChains(old, new nft.Program) nft.Program {
	hashes := make(map[string][]uint64, len(old))
	for _, c := range old {
		hashes[c.Name] = c.Hashes()
	}
	return slices.DeleteFunc(new, func(c *nft.ProgramChain) bool {
		had, ok := hashes[c.Name]
		return ok && slices.Equal(had, c.Hashes())
	})
}
