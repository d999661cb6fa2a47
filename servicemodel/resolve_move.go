package servicemodel

import (
	"net/netip"
	"slices"
)

// footprint is what one service has put into a table, without the objects that can be found there
// by the service's name.
type footprint struct {
	claims     []*Frontend // won or lost; sorted by service port and key
	clusterIPs []netip.Addr
	hairpins   []netip.Addr
}

func (f footprint) equal(o footprint) bool {
	return slices.Equal(f.claims, o.claims) && slices.Equal(f.clusterIPs, o.clusterIPs) &&
		slices.Equal(f.hairpins, o.hairpins)
}

// mover turns one table into the next, one service after the other.
type mover struct {
	resolver
	state      State
	t          *Table // a pointer, so that the new table does not keep the mover alive
	footprints footprints
	disturbed  []Name // services with a claim that changed, began to win, or began to lose
}

// job is a service to be moved to the new table.
type job struct {
	name   Name
	exists bool
	res    resolution
	old    footprint
	had    bool // whether old exists
}

// move makes the edits. First it moves all claims, which decides who wins each key. Then it updates
// the pools and sets that depend on the winners. This includes services that were not edited but
// won or lost a claim.
func (m *mover) move(edits []edit) {
	jobs := make([]job, 0, len(edits))
	add := func(n Name, svc *Service, eps []Endpoint) {
		j := job{name: n, exists: svc != nil}
		if j.old, j.had = m.footprints.Get(n); j.had || j.exists {
			j.res = m.resolve(svc, eps, j.old.claims)
			jobs = append(jobs, j)
		}
	}
	for _, e := range edits {
		add(e.name, e.service, e.endpoints)
	}
	for i := range jobs {
		if old, now := jobs[i].old.claims, jobs[i].res.claims; !slices.Equal(old, now) {
			m.moveClaims(old, now)
		}
	}
	slices.SortFunc(m.disturbed, Name.Compare)
	m.disturbed = slices.Compact(m.disturbed)
	for _, n := range m.disturbed {
		if _, edited := slices.BinarySearchFunc(edits, n, func(e edit, n Name) int {
			return e.name.Compare(n)
		}); !edited {
			add(n, m.state.serviceOf(n), m.state.endpointsOf(n))
		}
	}
	for i := range jobs {
		m.settle(&jobs[i])
	}
}

// settle updates everything except the claims to the service's new meaning.
func (m *mover) settle(j *job) {
	t := m.t
	won := filter(j.res.claims, func(f *Frontend) bool {
		winner, _ := t.frontends.Get(f.Key)
		return winner == f
	})
	if _, disturbed := slices.BinarySearchFunc(m.disturbed, j.name, Name.Compare); disturbed {
		for port := range byPort(j.old.claims) {
			t.owned = t.owned.Delete(port)
		}
		for port, claims := range byPort(won) {
			t.owned = t.owned.Set(port, claims)
		}
	}

	var old []*Pool
	for id, p := range t.pools.From(PoolID{Service: PortName{Name: j.name}}) {
		if id.Service.Name != j.name {
			break
		}
		old = append(old, p)
	}
	used, hairpins := usedPools(j.res.pools, won)
	for i, k := range align(old, used, comparePools) {
		switch {
		case i < 0:
			t.pools = t.pools.Set(used[k].ID, used[k])
		case k < 0:
			t.pools = t.pools.Delete(old[i].ID)
		default:
			if p := arrange(old[i], used[k]); p != old[i] {
				t.pools = t.pools.Set(p.ID, p)
			}
		}
	}
	t.clusterIPs = recount(t.clusterIPs, j.old.clusterIPs, j.res.clusterIPs)
	t.hairpins = recount(t.hairpins, j.old.hairpins, hairpins)

	switch h, had := t.health.Get(j.name); {
	case j.res.health == nil && had:
		t.health = t.health.Delete(j.name)
	case j.res.health != nil && (!had || *h != *j.res.health):
		t.health = t.health.Set(j.name, j.res.health)
	}
	now := footprint{claims: j.res.claims, clusterIPs: j.res.clusterIPs, hairpins: hairpins}
	switch {
	case !j.exists:
		m.footprints = m.footprints.Delete(j.name)
	case !j.had || !now.equal(j.old):
		m.footprints = m.footprints.Set(j.name, now)
	}
}

// usedPools returns the pools that a frontend of the service balances over, and the sorted hairpins
// in them. Both lists are sorted by service port.
func usedPools(drafts []poolDraft, frontends []*Frontend) (used []*Pool, hairpins []netip.Addr) {
	merged := false
	for i := range drafts {
		d, id := &drafts[i], drafts[i].pool.ID
		for len(frontends) > 0 && frontends[0].Service.Compare(id.Service) < 0 {
			frontends = frontends[1:]
		}
		for _, f := range frontends {
			if f.Service != id.Service {
				break
			}
			if f.Key.Family() != id.Family || !f.balancesOver(id.Local) {
				continue
			}
			used = append(used, d.pool)
			switch {
			case len(hairpins) == 0:
				hairpins = d.hairpins
			case !slices.Equal(hairpins, d.hairpins):
				hairpins, merged = append(slices.Clip(hairpins), d.hairpins...), true
			}
			break
		}
	}
	if merged {
		slices.SortFunc(hairpins, netip.Addr.Compare)
		hairpins = slices.Compact(hairpins)
	}
	return used, hairpins
}

// moveClaims replaces a service's claims. An unchanged claim is the same pointer in both lists.
func (m *mover) moveClaims(old, claims []*Frontend) {
	for i, j := range align(old, claims, compareClaims) {
		switch {
		case i < 0:
			m.claim(claims[j])
		case j < 0:
			m.unclaim(old[i])
		case old[i] == claims[j]:
		case old[i].Kind != claims[j].Kind:
			m.unclaim(old[i])
			m.claim(claims[j])
		default:
			m.reclaim(claims[j])
		}
	}
}

// claim adds f. The lowest claim of a key is the frontend, the others are the losers.
func (m *mover) claim(f *Frontend) {
	m.disturb(f)
	holder, taken := m.t.frontends.Get(f.Key)
	switch {
	case taken && holder.beats(f):
		m.t.losers = m.t.losers.Set(claimOf(f), f)
		return
	case taken:
		m.disturb(holder)
		m.t.losers = m.t.losers.Set(claimOf(holder), holder)
	}
	m.t.frontends = m.t.frontends.Set(f.Key, f)
}

// unclaim removes f; the next claim of its key takes over.
func (m *mover) unclaim(f *Frontend) {
	m.disturb(f)
	if holder, _ := m.t.frontends.Get(f.Key); holder != f {
		m.t.losers = m.t.losers.Delete(claimOf(f))
		return
	}
	for k, next := range m.t.losers.From(claimKey{key: f.Key}) {
		if k.key != f.Key {
			break
		}
		m.disturb(next)
		m.t.losers = m.t.losers.Delete(k)
		m.t.frontends = m.t.frontends.Set(f.Key, next)
		return
	}
	m.t.frontends = m.t.frontends.Delete(f.Key)
}

// reclaim replaces a claim by one of the same service port, key and kind.
func (m *mover) reclaim(f *Frontend) {
	m.disturb(f)
	if holder, _ := m.t.frontends.Get(f.Key); holder.Service == f.Service {
		m.t.frontends = m.t.frontends.Set(f.Key, f)
	} else {
		m.t.losers = m.t.losers.Set(claimOf(f), f)
	}
}

func (m *mover) disturb(f *Frontend) { m.disturbed = append(m.disturbed, f.Service.Name) }
