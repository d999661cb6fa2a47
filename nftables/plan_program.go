package nftables

import (
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// planLeaves plans the leaves of a table that stays. If other owners may need leaves, all stay.
// Otherwise unneeded leaves go: of inTurn always, the others only when the program is rewritten,
// because there are few of them. It returns the leaves that stay.
func (pl *planner) planLeaves(p *plan, t *tablePlan) []string {
	have := t.have.shape.leaves
	if t.have.leads == nil {
		t.next.leads = map[string]int{}
		for fe := range frontendsOf(p.c.Old, t.f) {
			pl.w.frontend(p.c.Old, fe, func(_ string, e nft.Elem) {
				if e.Goto {
					t.next.leads[string(e.Data)]++
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
			leaves = insert(leaves, name, strings.Compare)
		}
	}
	leaves = slices.DeleteFunc(leaves, func(name string) bool {
		if pl.owning != nil || t.leadsTo(name) {
			return false
		}
		leaf, _ := parseLeaf(name)
		return leaf.way == inTurn
	})
	if slices.Equal(leaves, have) {
		return have
	}
	b := builder{f: t.f, rules: p.c.New.Rules(), shape: &t.have.shape}
	for _, name := range leaves {
		if _, made := slices.BinarySearch(have, name); made {
			continue
		}
		if l, ok := parseLeaf(name); ok {
			b.leaf(&l)
		}
	}
	for _, name := range have {
		if _, stays := slices.BinarySearch(leaves, name); !stays {
			t.goneChains = append(t.goneChains, name)
		}
	}
	t.program, t.next.shape.leaves = b.Program, leaves
	return leaves
}

// leadsTo reports whether a frontend leads to a leaf after the plan.
func (t *tablePlan) leadsTo(name string) bool { return t.next.leads[name]+t.leads[name] > 0 }

// planAhead returns the plan that prepares the tables for a change set, or nil if none is needed. A
// packet that is under way meets the rules from before a commit, and the elements from after it. If
// these rules do not know the new way of a pool, the packet would find no endpoint. So a
// transaction of its own brings the rules.
func (pl *planner) planAhead(c *servicemodel.ChangeSet) (p *plan) {
	needed := false
	for _, pc := range c.Pools {
		if pc.Old == nil || pc.New == nil || wayOf(pc.Old) == wayOf(pc.New) {
			continue
		}
		t := pl.tables[slices.IndexFunc(pl.tables, func(t *table) bool {
			return t.f.Model == pc.New.ID.Family
		})]
		t.ahead |= wayOf(pc.New)
		needed = needed || t.exists && !t.broken && t.ahead&^t.shape.uses != 0
	}
	if needed {
		p = pl.plan(servicemodel.Diff(c.Old, c.Old))
	}
	for _, t := range pl.tables {
		t.ahead = 0
	}
	return p
}

// write plans all contents of a table.
func (pl *planner) write(p *plan, t *tablePlan) {
	t.renew = t.have.held != nil && !pl.refused
	t.create, t.rebuild = !t.renew, t.have.exists && !t.renew
	t.needAll(p.c.New)
	t.sets = setsOf(t.f, &t.need)
	t.newSets = t.sets
	for fe := range frontendsOf(p.c.New, t.f) {
		pl.w.elements(p.c.New, fe, t.add)
	}
	for _, set := range addressSets {
		if pl.owning == nil { // with owning set, the index of owners counts them
			for a := range addressesOf(p.c.New, t.f, set) {
				pl.w.address(set, a, t.add)
			}
		}
	}
	pl.w.writeSettings(p.c.New.Rules(), pl.localnet.before, t.add)
	t.need.leaves = slices.Sorted(maps.Keys(t.leads))
	t.next = skeleton{exists: true, shape: t.need, counts: map[string]int{},
		leads: map[string]int{}}
	t.program = pl.place.program(t.f, p.c.New.Rules(), &t.need)
	if t.renew {
		t.planRenewal(p.have)
	}
}

// planRenewal plans which objects of a table go before its contents are written anew. The user's
// chains stay. So do sets of the right type and size, which are emptied, because rules of the user
// may ask them, and maps of remembered clients, which keep these.
func (t *tablePlan) planRenewal(have version) {
	held, right := t.have.held, map[string]bool{}
	t.spare = map[string]bool{}
	for _, s := range t.sets {
		size, fixed := held.sizes[s.Name]
		ops := t.ops[s.Name]
		right[s.Name] = held.specs[s.Name] == s.Spec() &&
			(s.Size > 0 && size == s.Size ||
				s.Size == 0 && (!fixed || ops == nil || ops.add.Len <= int(size)))
		switch {
		case !right[s.Name]:
		case isAffinityMap(s.Name):
			t.spare[s.Name] = true
		default:
			t.flushed = append(t.flushed, s)
		}
	}
	t.newSets = slices.DeleteFunc(slices.Clone(t.sets), func(s *nft.Set) bool {
		return right[s.Name]
	})
	for _, name := range slices.Sorted(maps.Keys(held.specs)) {
		version := have.number != 0 && t.f == have.home && name == versionName(have.epoch)
		if !right[name] && !isAnonymous(name) && !version {
			t.goneSets = append(t.goneSets, &nft.Set{Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(held.chains)) {
		chain := held.chains[name]
		chain.Drops = false // adding the chain corrects the policy
		i := slices.IndexFunc(t.program, func(c *nft.ProgramChain) bool { return c.Name == name })
		if i < 0 || t.program[i].Chain != chain {
			t.goneChains = append(t.goneChains, name)
		}
	}
}

// size sets the sizes of the sets in a table that is written from nothing.
func (t *tablePlan) size(capacity func(n int) uint32) {
	for _, s := range t.newSets {
		if ops := t.ops[s.Name]; ops != nil && s.Size == 0 && s.Flags&nft.SetInterval == 0 {
			n := ops.add.Len
			if strings.HasSuffix(s.Name, wayNames[byMaglev]+setEndpoints) ||
				n >= growing && strings.HasSuffix(s.Name, wayNames[byHash]+setEndpoints) {
				n = max(n, firstMaglev)
			}
			s.Size = capacity(n)
		}
	}
}

// firstMaglev is for how many entries a map of Maglev is made at least, and one of a hash whose
// services prefer near endpoints, which have as many. So one with the 1,021
// entries of a first service has room for those of 64, and 1 MB of buckets.
const firstMaglev = 16 * 1021

// growing is for how many elements a set is made that grows as it must.
const growing = 1000

// capacity gives a set that begins with many elements room for four times as many. The kernel then
// makes a hash table that is large enough from the start. Filling it takes half the time of filling
// one that grows. It is never rehashed, so it can be read at any time. If the set is full, the
// kernel returns ENFILE, and the next commit replaces the set.
//
// A set of hundreds of thousands gets room for twice as many at least, and just as many as need no
// more buckets (nft_hash_buckets). The kernel clears their memory in one transaction: for a million
// elements 32 MB in 50 ms, not 128 MB in 285 ms.
func capacity(n int) uint32 {
	if n < growing {
		return 0
	}
	if n < 1<<18 {
		return 1 << bits.Len(uint(4*n-1))
	}
	return 3 << (bits.Len(uint((8*n-1)/3)) - 2)
}

// needAll computes the shape that all frontends of the table need.
func (t *tablePlan) needAll(of *servicemodel.Table) {
	t.need = shape{}
	for fe := range frontendsOf(of, t.f) {
		t.need.addFrontend(of, fe)
	}
}

// reshape rewrites the chains whose rules the present needs change. Sets that no rule needs any
// more are deleted.
func (pl *planner) reshape(p *plan, t *tablePlan, leaves []string) {
	t.needAll(p.c.New)
	t.need.uses |= t.have.ahead
	t.need.leaves = slices.DeleteFunc(slices.Clone(leaves), func(name string) bool {
		return pl.owning == nil && !t.leadsTo(name)
	})
	if pl.owning != nil { // nothing tells what other owners need
		t.need.add(&t.have.shape)
	}
	old := t.sets
	t.sets = setsOf(t.f, &t.need)
	t.newSets, t.goneSets = missing(t.sets, old), missing(old, t.sets)
	for _, s := range t.goneSets {
		// Deleting a set deletes its elements. But a chain cannot be deleted while elements of a
		// set that goes lead to it (before Linux 6.4, nft_map_deactivate).
		if !s.LeadsToChains() {
			delete(t.ops, s.Name)
		}
	}
	before := pl.place.program(t.f, p.c.Old.Rules(), &t.have.shape)
	t.program = pl.place.program(t.f, p.c.New.Rules(), &t.need)
	t.goneChains = nil
	for _, c := range before {
		if !t.program.Has(c.Name) {
			t.goneChains = append(t.goneChains, c.Name)
		}
	}
	if !t.have.stale {
		t.program = changedChains(before, t.program)
	}
	t.next.shape, t.next.stale = t.need, false
}

func missing(from, in []*nft.Set) []*nft.Set {
	return slices.DeleteFunc(slices.Clone(from), func(s *nft.Set) bool {
		return slices.ContainsFunc(in, func(o *nft.Set) bool { return o.Name == s.Name })
	})
}

// changedChains returns the chains of a program that an old program does not have, or has with
// other rules.
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

// removes reports whether a change set of parts removes them by [planner.removal]: the last parts,
// or parts of another layout.
func (pl *planner) removes(c *servicemodel.ChangeSet) bool {
	return c.New.Rules().MasqueradeMark == 0
}

// removal plans to delete the elements that are drift from tables of another layout. If no
// frontends are left, it plans to delete the tables.
func (pl *planner) removal(left int) *plan {
	p := &plan{table: pl.table, have: pl.version, next: pl.version.next(false, pl.version.home,
		pl.first, pl.version.unswept, false)}
	if left == 0 {
		p.next.home = nil // the epoch goes with its table
	}
	for _, have := range pl.tables {
		if !have.exists {
			continue
		}
		t := &tablePlan{f: have.f, rebuild: left == 0, ops: map[string]*setOps{}}
		p.tables = append(p.tables, t)
		for _, name := range slices.Sorted(maps.Keys(have.drift)) {
			if l := have.drift[name]; left > 0 && l.Len > 0 {
				t.sets = append(t.sets, &nft.Set{Name: name})
				t.ops[name] = &setOps{del: *l}
			}
		}
	}
	return p
}
