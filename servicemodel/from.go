package servicemodel

import "github.com/kernlb/kernlb/servicemodel/internal/pmap"

// Changes returns the part of Diff(t, c.New) about the objects that c changes. t is the table of
// the view. The cost depends on the size of c. When an engine retries a change of the table, it
// checks only the new part.
func (v tableView) Changes(c *ChangeSet) *ChangeSet {
	a, b := v.t, c.New.orEmpty()
	part := &ChangeSet{Old: a, New: c.New}
	if c.Rules != nil && !a.rules.Equal(b.rules) {
		part.Rules = changeOf(a.rules, b.rules)
	}
	part.Frontends = changesFrom(c.Frontends, frontendKey, a.frontends, b.frontends,
		(*Frontend).Equal)
	part.Pools = changesFrom(c.Pools, poolKey, a.pools, b.pools, (*Pool).Equal)
	part.Health = changesFrom(c.Health, healthKey, a.health, b.health, sameHealth)
	part.ClusterIPs = addrsFrom(c.ClusterIPs, a.clusterIPs, b.clusterIPs)
	part.Hairpins = addrsFrom(c.Hairpins, a.hairpins, b.hairpins)
	part.detach()
	return part
}

// The keys of objects in a table.
func frontendKey(f *Frontend) FrontendKey { return f.Key }
func poolKey(p *Pool) PoolID              { return p.ID }
func healthKey(h *HealthCheck) Name       { return h.Service }

// changesFrom returns how the objects named in changes differ between was and is.
func changesFrom[K pmap.Key[K], T any, O pmap.Hasher[K]](changes []Change[T], key func(*T) K,
	was, is pmap.Map[K, *T, O], same func(a, b *T) bool) (part []Change[T]) {
	for _, c := range changes {
		k := key(either(c.Old, c.New))
		old, _ := was.Get(k)
		now, _ := is.Get(k)
		if old != now && (old == nil || now == nil || !same(old, now)) {
			part = append(part, Change[T]{old, now})
		}
	}
	return part
}

func either[T any](old, new *T) *T {
	if old != nil {
		return old
	}
	return new
}

// addrsFrom returns how the addresses named in changes differ between was and is.
func addrsFrom(changes []AddrChange, was, is addrCounts) (part []AddrChange) {
	for _, c := range changes {
		_, old := was.Get(c.Addr)
		if _, now := is.Get(c.Addr); now != old {
			part = append(part, AddrChange{Addr: c.Addr, Added: now})
		}
	}
	return part
}
