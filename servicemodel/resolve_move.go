package servicemodel

import (
	"net/netip"
	"slices"
)

// footprint is what one service has put into a table, apart from what can be found there by its
// name.
type footprint struct {
	claims     []*Frontend // won or lost; sorted by service port and key
	clusterIPs []netip.Addr
	hairpins   []netip.Addr
}

func (f footprint) equal(o footprint) bool {
	return slices.Equal(f.claims, o.claims) && slices.Equal(f.clusterIPs, o.clusterIPs) &&
		slices.Equal(f.hairpins, o.hairpins)
}

// mover leads from one table to the next, one service after the other.
type mover struct {
	resolver
	state      State
	t          *Table // the table being made; no part of the mover, which would live as long
	footprints footprints
	disturbed  []Name // services of which a claim changed, or began to win or to lose
}

// job is a service to be moved.
type job struct {
	name   Name
	exists bool
	res    resolution
	old    footprint
	had    bool // a footprint
}

// move makes the edits. First all claims are moved, so that it is settled who wins where; then the
// pools and sets that depend on that, also of services that were not edited but won or lost a
// claim.
func (m *mover) move(edits []edit) {
	jobs := make([]job, 0, len(edits))
	for _, e := range edits {
		j, concerned := m.job(e.name, e.service, e.endpoints)
		if !concerned {
			continue
		}
		m.moveClaims(j.old.claims, j.res.claims)
		jobs = append(jobs, j)
	}
	slices.SortFunc(m.disturbed, Name.Compare)
	m.disturbed = slices.Compact(m.disturbed)
	edited := len(jobs)
	for _, n := range m.disturbed {
		if _, found := slices.BinarySearchFunc(jobs[:edited], n, func(j job, n Name) int {
			return j.name.Compare(n)
		}); found {
			continue
		}
		j, _ := m.job(n, m.state.serviceOf(n), m.state.endpointsOf(n))
		jobs = append(jobs, j)
	}
	for i := range jobs {
		m.settle(&jobs[i])
	}
}

// job returns what is to be done about a service, and false if it neither exists nor did so before.
func (m *mover) job(n Name, svc *Service, eps []Endpoint) (j job, concerned bool) {
	j.name, j.exists = n, svc != nil
	j.old, j.had = m.footprints.Get(n)
	j.res = m.resolve(svc, eps, j.old.claims)
	return j, j.had || j.exists
}

// moveClaims replaces a service's claims. A claim that stays the same is the same pointer in both
// lists.
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

// claim enters f. The lowest claim of a key is the frontend, the others are the losers.
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

// settle brings everything but claims in line with what the service means now.
func (m *mover) settle(j *job) {
	if _, found := slices.BinarySearchFunc(m.disturbed, j.name, Name.Compare); found {
		m.settleOwned(j)
	}
	now := footprint{claims: j.res.claims, clusterIPs: j.res.clusterIPs, hairpins: m.settlePools(j)}
	m.t.clusterIPs = recount(m.t.clusterIPs, j.old.clusterIPs, now.clusterIPs)
	m.t.hairpins = recount(m.t.hairpins, j.old.hairpins, now.hairpins)

	h, had := m.t.health.Get(j.name)
	switch {
	case j.res.health == nil && had:
		m.t.health = m.t.health.Delete(j.name)
	case j.res.health != nil && h != *j.res.health:
		m.t.health = m.t.health.Set(j.name, *j.res.health)
	}
	switch {
	case !j.exists:
		m.footprints = m.footprints.Delete(j.name)
	case !j.had || !now.equal(j.old):
		m.footprints = m.footprints.Set(j.name, now)
	}
}

// settleOwned brings the lists of each service port's frontends in line with who won.
func (m *mover) settleOwned(j *job) {
	for port := range byPort(j.old.claims) {
		m.t.owned = m.t.owned.Delete(port)
	}
	for port, claims := range byPort(j.res.claims) {
		if won := filter(claims, m.wins); len(won) > 0 {
			m.t.owned = m.t.owned.Set(port, won)
		}
	}
}

// wins reports whether the claim f is the frontend of its key.
func (m *mover) wins(f *Frontend) bool { return m.t.frontend(f.Key) == f }

// settlePools brings the service's pools in line with the claims it won. It returns their hairpins.
func (m *mover) settlePools(j *job) (hairpins []netip.Addr) {
	var old []*Pool
	for id, p := range m.t.pools.From(PoolID{Service: PortName{Name: j.name}}) {
		if id.Service.Name != j.name {
			break
		}
		old = append(old, p)
	}
	used, hairpins := usedPools(j.res.pools, filter(j.res.claims, m.wins))
	for i, k := range align(old, used, comparePools) {
		switch {
		case i < 0:
			m.t.pools = m.t.pools.Set(used[k].ID, used[k])
		case k < 0:
			m.t.pools = m.t.pools.Delete(old[i].ID)
		default:
			if p := arrange(old[i], used[k]); p != old[i] {
				m.t.pools = m.t.pools.Set(p.ID, p)
			}
		}
	}
	return hairpins
}

// usedPools returns, of the pools a service could have, those that a frontend of it balances over,
// and the hairpins in them. Both lists are sorted by service port.
func usedPools(drafts []poolDraft, frontends []*Frontend) (used []*Pool, hairpins []netip.Addr) {
	for i := range drafts {
		d, id := &drafts[i], drafts[i].pool.ID
		for len(frontends) > 0 && frontends[0].Service.Compare(id.Service) < 0 {
			frontends = frontends[1:]
		}
		for _, f := range frontends {
			if f.Service != id.Service {
				break
			}
			if f.Key.Family() == id.Family && f.balancesOver(id.Scope) {
				used = append(used, d.pool)
				hairpins = union(hairpins, d.hairpins)
				break
			}
		}
	}
	return used, hairpins
}
