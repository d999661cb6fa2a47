package servicemodel

import "net/netip"

// From returns the part of Diff(old, c.New) that is about the objects that c changes, at a cost
// that depends on the size of c. An engine uses it to check only what is new in another attempt to
// change the table old.
func (c *ChangeSet) From(old *Table) *ChangeSet {
	a, b := old.orEmpty(), c.New.orEmpty()
	part := &ChangeSet{Old: old, New: c.New}
	if c.Rules != nil && !a.rules.Equal(b.rules) {
		part.Rules = &RulesChange{Old: a.rules.clone(), New: b.rules.clone()}
	}
	for _, f := range c.Frontends {
		key := either(f.Old, f.New).Key
		was, is := a.frontend(key), b.frontend(key)
		if differ(was, is, (*Frontend).Equal) {
			part.Frontends = append(part.Frontends, FrontendChange{Old: was, New: is})
		}
	}
	for _, p := range c.Pools {
		id := either(p.Old, p.New).ID
		was, is := a.pool(id), b.pool(id)
		if differ(was, is, (*Pool).Equal) {
			part.Pools = append(part.Pools, PoolChange{Old: was, New: is})
		}
	}
	part.ClusterIPs = addrsFrom(c.ClusterIPs, a.HasClusterIP, b.HasClusterIP)
	part.Hairpins = addrsFrom(c.Hairpins, a.HasHairpin, b.HasHairpin)
	for _, h := range c.Health {
		name := either(h.Old, h.New).Service
		was, is := a.healthCheck(name), b.healthCheck(name)
		if differ(was, is, func(a, b *HealthCheck) bool { return *a == *b }) {
			part.Health = append(part.Health, HealthChange{Old: was, New: is})
		}
	}
	part.detach()
	return part
}

// differ reports whether an object came, went or changed.
func differ[T any](was, is *T, equal func(a, b *T) bool) bool {
	return was != is && (was == nil || is == nil || !equal(was, is))
}

// either returns the one of two that is not nil.
func either[T any](old, new *T) *T {
	if old != nil {
		return old
	}
	return new
}

// addrsFrom returns how the addresses named in changes differ between was and is.
func addrsFrom(changes []AddrChange, was, is func(netip.Addr) bool) (part []AddrChange) {
	for _, c := range changes {
		if now := is(c.Addr); now != was(c.Addr) {
			part = append(part, AddrChange{Addr: c.Addr, Added: now})
		}
	}
	return part
}

// healthCheck returns the health check of a service, nil if there is none.
func (t *Table) healthCheck(n Name) *HealthCheck {
	if h, ok := t.health.Get(n); ok {
		return &h
	}
	return nil
}
