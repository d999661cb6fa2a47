package servicemodel

import (
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Diff returns the changes that lead from old to new. They are empty ([ChangeSet.Empty]) exactly if
// the tables are equal. Diff skips contents that the tables share, so its cost depends on the
// difference.
func Diff(old, new *Table) *ChangeSet {
	c := &ChangeSet{Old: old, New: new}
	a, b := old.orEmpty(), new.orEmpty()
	if !a.rules.Equal(b.rules) {
		c.Rules = changeOf(a.rules, b.rules)
	}
	c.Frontends = changes(a.frontends, b.frontends, (*Frontend).Equal)
	c.Pools = changes(a.pools, b.pools, (*Pool).Equal)
	c.Health = changes(a.health, b.health, sameHealth)
	c.ClusterIPs = diffAddrs(a.clusterIPs, b.clusterIPs)
	c.Hairpins = diffAddrs(a.hairpins, b.hairpins)
	c.detach()
	return c
}

func changeOf(old, new Rules) *Change[Rules] {
	old, new = old.clone(), new.clone()
	return &Change[Rules]{&old, &new}
}

func changes[K pmap.Key[K], T any, O pmap.Hasher[K]](a, b pmap.Map[K, *T, O],
	same func(a, b *T) bool) (list []Change[T]) {
	if a.Len() == 0 {
		list = make([]Change[T], 0, b.Len())
	}
	for d := range pmap.Diff(a, b, same) {
		list = append(list, Change[T]{d.Old, d.New})
	}
	return list
}

func diffAddrs(a, b addrCounts) (list []AddrChange) {
	if a.Len() == 0 {
		list = make([]AddrChange, 0, b.Len())
	}
	for d := range pmap.Diff(a, b, func(int, int) bool { return true }) {
		list = append(list, AddrChange{Addr: d.Key, Added: d.InNew})
	}
	return list
}

func sameHealth(a, b *HealthCheck) bool { return *a == *b }

// always treats any two values of one key as equal.
func always[V any](V, V) bool { return true }

// Equal reports whether t and o mean the same to a kernel: they have the same rules, frontends,
// pools (slots in the same order), cluster IPs and hairpins. Health checks and conflicts do not
// count, because a table that was read from a kernel lacks them.
func (t *Table) Equal(o *Table) bool {
	a, b := t.orEmpty(), o.orEmpty()
	return a.rules.Equal(b.rules) && equalMaps(a.frontends, b.frontends, (*Frontend).Equal) &&
		equalMaps(a.pools, b.pools, (*Pool).Equal) && equalMaps(a.clusterIPs, b.clusterIPs,
		always[int]) &&
		equalMaps(a.hairpins, b.hairpins, always[int])
}

func equalMaps[K pmap.Key[K], V any, O pmap.Hasher[K]](a, b pmap.Map[K, V, O],
	same func(V, V) bool) bool {
	if a.Len() != b.Len() {
		return false
	}
	for range pmap.Diff(a, b, same) {
		return false
	}
	return true
}

// Apply returns the table that results from making the changes to t. Applying Diff(a, b) to a gives
// a table equal to b. The result knows neither the state that b was resolved from nor conflicts.
func (t *Table) Apply(c *ChangeSet) *Table {
	n := *t.orEmpty()
	n.memory, n.ramps, n.losers = nil, nil, pmap.Map[claimKey, *Frontend, claimHash]{}
	if c.Rules != nil {
		n.rules = c.Rules.New.clone()
	}
	for _, f := range c.Frontends {
		if f.Old != nil {
			n.disown(f.Old)
		}
		if f.New != nil {
			n.own(f.New.clone())
		}
	}
	n.pools = applied(n.pools, c.Pools, poolKey, (*Pool).clone)
	n.health = applied(n.health, c.Health, healthKey, func(h *HealthCheck) *HealthCheck {
		own := *h
		return &own
	})
	n.clusterIPs = applyAddrs(n.clusterIPs, c.ClusterIPs)
	n.hairpins = applyAddrs(n.hairpins, c.Hairpins)
	return &n
}

func applied[K pmap.Key[K], T any, O pmap.Hasher[K]](to pmap.Map[K, *T, O], changes []Change[T],
	key func(*T) K, clone func(*T) *T) pmap.Map[K, *T, O] {
	for _, c := range changes {
		if c.New == nil {
			to = to.Delete(key(c.Old))
		} else {
			to = to.Set(key(c.New), clone(c.New))
		}
	}
	return to
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

// own adds f to the frontends of the table and of its service port. disown removes it.
func (t *Table) own(f *Frontend) {
	t.frontends = t.frontends.Set(f.Key, f)
	list := slices.Clone(t.frontendsOf(f.Service))
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	if found {
		list[i] = f
	} else {
		list = slices.Insert(list, i, f)
	}
	t.owned = t.owned.Set(f.Service, list)
}

func (t *Table) disown(f *Frontend) {
	t.frontends = t.frontends.Delete(f.Key)
	list := t.frontendsOf(f.Service)
	i, found := slices.BinarySearchFunc(list, f, compareClaims)
	switch {
	case found && len(list) == 1:
		t.owned = t.owned.Delete(f.Service)
	case found:
		t.owned = t.owned.Set(f.Service, slices.Delete(slices.Clone(list), i, i+1))
	}
}
