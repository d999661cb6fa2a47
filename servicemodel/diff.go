package servicemodel

import (
	"slices"

	"github.com/kernlb/kernlb/internal/persist"
)

// Diff returns the changes that lead from old to new. Equal tables give an empty change set. Diff
// skips what the tables share, so it costs as much as they differ.
func Diff(old, new *Table) *ChangeSet {
	c := &ChangeSet{Old: old, New: new}
	a, b := old.orEmpty(), new.orEmpty()
	if !a.rules.Equal(b.rules) {
		c.Rules = &RulesChange{Old: a.rules.clone(), New: b.rules.clone()}
	}
	if a.frontends.Len() == 0 {
		c.Frontends = make([]FrontendChange, 0, b.frontends.Len())
		c.Pools = make([]PoolChange, 0, b.pools.Len())
	}
	for d := range persist.Diff(a.frontends, b.frontends, (*Frontend).Equal) {
		c.Frontends = append(c.Frontends, FrontendChange{Old: d.Old, New: d.New})
	}
	for d := range persist.Diff(a.pools, b.pools, (*Pool).Equal) {
		c.Pools = append(c.Pools, PoolChange{Old: d.Old, New: d.New})
	}
	c.ClusterIPs = diffAddrs(a.clusterIPs, b.clusterIPs)
	c.Hairpins = diffAddrs(a.hairpins, b.hairpins)
	for d := range persist.Diff(a.health, b.health, same[HealthCheck]) {
		h := HealthChange{}
		if d.InOld {
			h.Old = &d.Old
		}
		if d.InNew {
			h.New = &d.New
		}
		c.Health = append(c.Health, h)
	}
	c.detach()
	return c
}

func diffAddrs(a, b addrCounts) (changes []AddrChange) {
	if a.Len() == 0 {
		changes = make([]AddrChange, 0, b.Len())
	}
	for d := range persist.Diff(a, b, always[int]) {
		changes = append(changes, AddrChange{Addr: d.Key, Added: d.InNew})
	}
	return changes
}

// same compares two values of a key; always takes any two values for the same.
func same[V comparable](a, b V) bool { return a == b }
func always[V any](V, V) bool        { return true }

// Equal reports whether t and o have the same rules, frontends, pools (slots in the same order),
// cluster IPs, hairpins and health checks.
func (t *Table) Equal(o *Table) bool {
	a, b := t.orEmpty(), o.orEmpty()
	return a.rules.Equal(b.rules) && equalMaps(a.frontends, b.frontends, (*Frontend).Equal) &&
		equalMaps(a.pools, b.pools, (*Pool).Equal) && equalMaps(a.clusterIPs, b.clusterIPs,
		always[int]) &&
		equalMaps(a.hairpins, b.hairpins, always[int]) &&
		equalMaps(a.health, b.health, same[HealthCheck])
}

func equalMaps[K, V any, O persist.Ordering[K]](a, b persist.Map[K, V, O],
	same func(V, V) bool) bool {
	if a.Len() != b.Len() {
		return false
	}
	for range persist.Diff(a, b, same) {
		return false
	}
	return true
}

// Apply returns the table that results from making the changes to t. Applying Diff(a, b) to a gives
// a table equal to b. The result knows nothing of the state b was resolved from, nor of conflicts.
func (t *Table) Apply(c *ChangeSet) *Table {
	n := *t.orEmpty()
	n.memory, n.losers = nil, persist.Map[claimKey, *Frontend, claimOrder]{}
	if c.Rules != nil {
		n.rules = c.Rules.New.clone()
	}
	for _, f := range c.Frontends {
		if f.Old != nil {
			n.disown(f.Old)
			n.frontends = n.frontends.Delete(f.Old.Key)
		}
		if f.New != nil {
			own := f.New.clone()
			n.own(own)
			n.frontends = n.frontends.Set(own.Key, own)
		}
	}
	for _, p := range c.Pools {
		if p.New == nil {
			n.pools = n.pools.Delete(p.Old.ID)
		} else {
			n.pools = n.pools.Set(p.New.ID, p.New.clone())
		}
	}
	n.clusterIPs = applyAddrs(n.clusterIPs, c.ClusterIPs)
	n.hairpins = applyAddrs(n.hairpins, c.Hairpins)
	for _, h := range c.Health {
		if h.New == nil {
			n.health = n.health.Delete(h.Old.Service)
		} else {
			n.health = n.health.Set(h.New.Service, *h.New)
		}
	}
	return &n
}

func applyAddrs(set addrCounts, changes []AddrChange) addrCounts {
	for _, c := range changes {
		if c.Added {
			set = set.Set(c.Addr, 1)
		} else {
			set = set.Delete(c.Addr)
		}
	}
	return set
}

// own enters f in the list of its service port's frontends, and disown takes it out.
func (t *Table) own(f *Frontend) {
	list := t.frontendsOf(f.Service)
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	list = slices.Clone(list)
	if found {
		list[i] = f
	} else {
		list = slices.Insert(list, i, f)
	}
	t.owned = t.owned.Set(f.Service, list)
}

func (t *Table) disown(f *Frontend) {
	list := t.frontendsOf(f.Service)
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	switch {
	case found && len(list) == 1:
		t.owned = t.owned.Delete(f.Service)
	case found:
		t.owned = t.owned.Set(f.Service, slices.Delete(slices.Clone(list), i, i+1))
	}
}
