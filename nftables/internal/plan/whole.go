package plan

import (
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// planWhole plans all contents of a table.
func (pl *Planner) planWhole(p *Plan, t *TablePlan) {
	t.Renew = t.Have.Held != nil && !pl.Refused
	t.Create, t.rebuild = !t.Renew, t.Have.Exists && !t.Renew
	t.needAll(p.Changes.New)
	t.Sets = form.SetsOf(t.Family, &t.need)
	t.NewSets = t.Sets
	for fe := range form.FrontendsOf(p.Changes.New, t.Family) {
		pl.Writer.Elements(p.Changes.New, fe, t.add)
	}
	for _, set := range form.AddressSets {
		if pl.Owning == nil { // with Owning set, the index of owners counts them
			for a := range form.AddressesOf(p.Changes.New, t.Family, set) {
				pl.Writer.Address(set, a, t.add)
			}
		}
	}

	pl.Writer.Settings(p.Changes.New.Rules(), p.Sysctls.Records, t.add)
	t.need.Leaves = slices.Sorted(maps.Keys(t.leads))
	t.next = form.Skeleton{Exists: true, Shape: t.need, Counts: map[string]int{},
		Leads: map[string]int{}}
	t.Program = pl.Hooks.Program(t.Family, p.Changes.New.Rules(), &t.need)
	if t.Renew {
		t.planRenewal(p.Have)
	}
}

// planRenewal plans which objects of a table are removed before its contents are replaced.
// User-defined chains are kept. Sets of the right type and size are also kept, because user-defined
// rules may refer to them; they are emptied. Maps of remembered clients are kept with their
// clients.
func (t *TablePlan) planRenewal(have form.Version) {
	held, right := t.Have.Held, map[string]bool{}
	t.spare = map[string]bool{}
	for _, s := range t.Sets {
		size, fixed := held.Sizes[s.Name]
		ops := t.Ops[s.Name]
		right[s.Name] = held.Specs[s.Name] == s.Spec() &&
			(s.Size > 0 && size == s.Size ||
				s.Size == 0 && (!fixed || ops == nil || ops.Add.Len <= int(size)))
		switch {
		case !right[s.Name]:
		case form.IsAffinityMap(s.Name):
			t.spare[s.Name] = true
		default:
			t.flushed = append(t.flushed, s)
		}
	}

	t.NewSets = slices.DeleteFunc(slices.Clone(t.Sets), func(s *nft.Set) bool {
		return right[s.Name]
	})
	for _, name := range slices.Sorted(maps.Keys(held.Specs)) {
		version := have.Number != 0 && t.Family == have.Home && name == form.VersionName(have.Epoch)
		if !right[name] && !form.IsAnonymous(name) && !version {
			t.goneSets = append(t.goneSets, &nft.Set{Name: name})
		}
	}

	for _, name := range slices.Sorted(maps.Keys(held.Chains)) {
		chain := held.Chains[name]
		chain.Drops = false // adding the chain corrects the policy
		i := slices.IndexFunc(t.Program, func(c *nft.ProgramChain) bool { return c.Name == name })
		if i < 0 || t.Program[i].Chain != chain {
			t.goneChains = append(t.goneChains, name)
		}
	}
}
