package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// memory is a table's record of its resolution. With it the next resolution costs only what
// changed.
type memory struct {
	state      State
	view       view
	footprints footprints
	slow       slowStarts
	homeless   homeless // filled when a cause is asked for
}

// Resolve decides what the state means on its node. prev is an earlier table, or nil. The result
// shares unchanged contents with prev, and the cost depends on the changes. The same state always
// gives the same result, except for the order of slots, which prev influences. If the changes are
// invalid, Resolve returns no table and an error that joins a *[FieldError] for every problem.
func Resolve(prev *Table, s State) (*Table, error) {
	prev = prev.whole()
	old := &memory{}
	if prev.remembers() {
		old = prev.memory
		if old.state.Same(s) {
			return prev, nil
		}
	}
	edits := s.editsSince(old.state)
	if err := validate(s, edits, !prev.remembers() || old.state.node != s.node); err != nil {
		return nil, err
	}
	if !prev.remembers() {
		return rebuild(prev, footprints{}, s, edits), nil
	}
	t := *prev
	m := mover{resolver: resolver{view: old.view}, state: s, t: &t, footprints: old.footprints}
	if old.state.node != s.node {
		t.rules, m.view = s.viewpoint().rules(), s.viewpoint().view()
	}
	if m.view != old.view || len(edits) > bulkThreshold && len(edits) > s.Len()/4 {
		return rebuild(prev, old.footprints, s, s.editsSince(State{})), nil
	}
	m.move(edits)
	t.memory = &memory{state: s, view: m.view, footprints: m.footprints,
		slow: old.slow.after(edits)}
	return &t, nil
}

// bulkThreshold is the number of changed services from which rebuilding all maps can be cheaper
// than editing them.
const bulkThreshold = 64

// remembers reports whether t knows the state that it was resolved from. t may be nil.
func (t *Table) remembers() bool { return t != nil && t.memory != nil }

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

type footprints = pmap.Map[Name, footprint, nameHash]

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
			add(n, m.state.services.At(n), m.state.endpoints.At(n))
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
		return t.frontends.At(f.Key) == f
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
	if m.t.frontends.At(f.Key) != f {
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
	if m.t.frontends.At(f.Key).Service == f.Service {
		m.t.frontends = m.t.frontends.Set(f.Key, f)
	} else {
		m.t.losers = m.t.losers.Set(claimOf(f), f)
	}
}

func (m *mover) disturb(f *Frontend) { m.disturbed = append(m.disturbed, f.Service.Name) }

// rebuild resolves every service and rebuilds all maps, in almost linear time. It shares entries
// with prev, which may be nil, if they are equal there. The result is the same as moving prev to s
// service by service. edits must list all services of s. old are the footprints of prev.
func rebuild(prev *Table, old footprints, s State, edits []edit) *Table {
	b := bulk{resolver: resolver{view: s.viewpoint().view()}, prev: prev.orEmpty(), t: &Table{}}
	b.t.rules = s.viewpoint().rules()
	resolved := make([]resolution, len(edits))
	for i, e := range edits {
		resolved[i] = b.resolve(e.service, e.endpoints, old.At(e.name).claims)
	}
	b.settleClaims(resolved)
	n := 0
	for i := range resolved {
		for _, p := range resolved[i].pools {
			n += len(p.hairpins)
		}
	}
	b.hairpins = make([]netip.Addr, 0, n)
	for i, e := range edits {
		if e.service != nil {
			b.add(e.name, &resolved[i])
		}
	}
	b.t.owned, b.t.pools, b.t.health = b.owned.Map(), b.pools.Map(), b.health.Map()
	b.t.clusterIPs, b.t.hairpins = countAddrs(b.clusterIPs), countAddrs(b.hairpins)
	b.t.memory = &memory{state: s, view: b.view, footprints: b.footprints.Map(),
		slow: slowStarts{}.after(edits)}
	return b.t
}

type bulk struct {
	resolver
	prev *Table
	t    *Table // a pointer, so that the table does not keep the bulk alive
	lost map[*Frontend]bool

	owned                pmap.Builder[PortName, []*Frontend, portHash]
	pools                pmap.Builder[PoolID, *Pool, poolHash]
	health               pmap.Builder[Name, *HealthCheck, nameHash]
	footprints           pmap.Builder[Name, footprint, nameHash]
	clusterIPs, hairpins []netip.Addr
}

// settleClaims decides which claim of each key wins.
func (b *bulk) settleClaims(resolved []resolution) {
	type entry struct {
		key FrontendKey // a copy, so that sorting need not follow the pointer
		f   *Frontend
	}
	n := 0
	for i := range resolved {
		n += len(resolved[i].claims)
	}
	all := make([]entry, 0, n)
	for i := range resolved {
		for _, f := range resolved[i].claims {
			all = append(all, entry{f.Key, f})
		}
	}
	slices.SortFunc(all, func(x, y entry) int {
		if c := x.key.Compare(y.key); c != 0 {
			return c
		}
		return claimOf(x.f).Compare(claimOf(y.f))
	})
	var won pmap.Builder[FrontendKey, *Frontend, keyHash]
	var lost pmap.Builder[claimKey, *Frontend, claimHash]
	b.lost = make(map[*Frontend]bool)
	for _, e := range all {
		if !won.Append(e.key, e.f) {
			lost.Append(claimOf(e.f), e.f)
			b.lost[e.f] = true
		}
	}
	b.t.frontends, b.t.losers = won.Map(), lost.Map()
}

// add adds the pools, addresses and lists that depend on which claims of the service won.
func (b *bulk) add(n Name, res *resolution) {
	won := filter(res.claims, func(f *Frontend) bool { return !b.lost[f] })
	for port, own := range byPort(won) {
		b.owned.Append(port, own)
	}
	used, hairpins := usedPools(res.pools, won)
	for _, p := range used {
		b.pools.Append(p.ID, arrange(b.prev.pools.At(p.ID), p))
	}
	b.clusterIPs = append(b.clusterIPs, res.clusterIPs...)
	b.hairpins = append(b.hairpins, hairpins...)
	if res.health != nil {
		b.health.Append(n, res.health)
	}
	b.footprints.Append(n, footprint{claims: res.claims, clusterIPs: res.clusterIPs,
		hairpins: hairpins})
}
