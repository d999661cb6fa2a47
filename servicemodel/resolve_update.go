package servicemodel

import (
	"net/netip"
	"slices"
)

// update turns a table into its successor.
type update struct {
	resolver
	t          *Table // a pointer, so that the new table does not keep the update alive
	footprints footprints
	warned     Warnings
	disturbed  []Name // services with a claim that changed, began to win, or began to lose
}

// resolved is a service with its new meaning.
type resolved struct {
	resolution
	old footprint
}

// apply makes the edits, which result in state s. First it replaces all claims, which decides the
// winner of each key. Then it updates the pools and sets that depend on the winners. This includes
// services that were not edited but won or lost a claim.
func (u *update) apply(s State, edits []edit) {
	services := make([]resolved, 0, len(edits))
	resolve := func(n Name, e entry) {
		old := u.footprints.At(n)
		services = append(services, resolved{u.resolve(n, e, old.claims), old})
	}

	for i := range edits {
		resolve(edits[i].Key, edits[i].New)
	}
	for i := range services {
		old, now := services[i].old.claims, services[i].claims
		if slices.Equal(old, now) { // an unchanged claim is the same pointer in both
			continue
		}
		for i, j := range align(old, now, compareClaims) {
			switch {
			case i < 0:
				u.replaceClaim(nil, now[j])
			case j < 0:
				u.replaceClaim(old[i], nil)
			case old[i] != now[j]:
				u.replaceClaim(old[i], now[j])
			}
		}
	}

	slices.SortFunc(u.disturbed, Name.Compare)
	u.disturbed = slices.Compact(u.disturbed)
	for _, n := range u.disturbed {
		if _, edited := slices.BinarySearchFunc(edits, n, func(e edit, n Name) int {
			return e.Key.Compare(n)
		}); !edited {
			resolve(n, s.entries.At(n))
		}
	}

	for i := range services {
		u.store(&services[i])
	}
}

// store puts everything except the claims of a service into the table.
func (u *update) store(r *resolved) {
	t := u.t
	won := func(f *Frontend) bool { return t.frontends.At(f.Key) == f }
	if _, disturbed := slices.BinarySearchFunc(u.disturbed, r.name, Name.Compare); disturbed {
		for port := range byPort(r.old.claims) {
			t.owned = t.owned.Delete(port)
		}
		for port, claims := range byPort(filter(r.claims, won)) {
			t.owned = t.owned.Set(port, claims)
		}
	}

	var old []*Pool
	in := func(id PoolID) bool { return id.Service.Name == r.name }
	for _, p := range t.pools.From(PoolID{Service: PortName{Name: r.name}}, in) {
		old = append(old, p)
	}
	used, hairpins := r.usedPools(won)
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

	t.clusterIPs = recount(t.clusterIPs, r.old.clusterIPs, r.clusterIPs)
	t.hairpins = recount(t.hairpins, r.old.hairpins, hairpins)

	if old := t.health.At(r.name); r.health == nil {
		t.health = t.health.Delete(r.name)
	} else if old == nil || *old != *r.health {
		t.health = t.health.Set(r.name, r.health)
	}

	u.warned = u.warned.with(r.name, r.warnings)
	now := footprint{claims: r.claims, clusterIPs: r.clusterIPs, hairpins: hairpins}
	if now.equal(footprint{}) {
		u.footprints = u.footprints.Delete(r.name)
	} else if !now.equal(r.old) {
		u.footprints = u.footprints.Set(r.name, now)
	}
}

// usedPools returns the pools over which a frontend of the service balances, and the sorted
// hairpins in these pools. won reports whether a claim is a frontend.
func (r *resolution) usedPools(won func(*Frontend) bool) (used []*Pool, hairpins []netip.Addr) {
	lists := make([][]netip.Addr, 0, 2)
	for i := range r.pools {
		p := &r.pools[i]
		balances := func(f *Frontend) bool { return f.balancesOver(p.pool.ID.Local) && won(f) }
		if !slices.ContainsFunc(r.claims[p.from:p.to], balances) {
			continue
		}
		used = append(used, p.pool)
		if len(lists) == 0 || !slices.Equal(lists[len(lists)-1], p.hairpins) {
			lists = append(lists, p.hairpins)
		}
	}

	if len(lists) == 1 {
		return used, lists[0]
	}
	hairpins = slices.Concat(lists...)
	slices.SortFunc(hairpins, netip.Addr.Compare)
	return used, slices.Compact(hairpins)
}

// arrange returns the pool want with its slots reordered to match like. want's slots must be
// sorted. An endpoint that is also in like keeps its slot, unless want has fewer slots. All other
// endpoints fill the holes: first endpoints whose slot lies beyond the end, then new endpoints in
// order. So few slots change. arrange returns like itself if nothing differs.
func arrange(like, want *Pool) *Pool {
	if like == nil {
		return want
	}
	slots := make([]Slot, len(want.Slots))
	placed := make([]bool, len(want.Slots))
	var waiting []Slot
	j := -1
	for i, s := range like.Slots {
		// Usually the next slot is the right one.
		if j++; j >= len(want.Slots) || want.Slots[j].Endpoint != s.Endpoint {
			var found bool
			if j, found = slices.BinarySearchFunc(want.Slots, s, func(a, b Slot) int {
				return a.Endpoint.Compare(b.Endpoint)
			}); !found {
				continue
			}
		}

		if placed[j] {
			continue
		}
		placed[j] = true
		if i < len(slots) {
			slots[i] = want.Slots[j]
		} else {
			waiting = append(waiting, want.Slots[j])
		}
	}

	for j, s := range want.Slots {
		if !placed[j] {
			waiting = append(waiting, s)
		}
	}

	for i := range slots {
		if !slots[i].Endpoint.IsValid() {
			slots[i], waiting = waiting[0], waiting[1:]
		}
	}

	p := *want
	p.Slots = slots
	switch {
	case p.Scheduler.Fed():
		p.layShares(want.fedByEndpoint(), like)
	case !p.hashes():
	case like.hashes() && slices.Equal(like.Slots, slots):
		p.Units = like.Units // on any scale
	default:
		p.lay(like, want.scale())
	}

	if like.Equal(&p) {
		return like
	}
	return &p
}

// recount replaces one service's addresses in a set.
func recount(set addrCounts, old, now []netip.Addr) addrCounts {
	for i, j := range align(old, now, netip.Addr.Compare) {
		switch {
		case i < 0:
			set = set.Set(now[j], set.At(now[j])+1)
		case j < 0:
			if n := set.At(old[i]); n > 1 {
				set = set.Set(old[i], n-1)
			} else {
				set = set.Delete(old[i])
			}
		}
	}

	return set
}

// replaceClaim replaces a claim of a service. Either claim may be nil. The lowest claim of a key is
// the frontend.
func (u *update) replaceClaim(was, is *Frontend) {
	t, key := u.t, either(was, is).Key
	holder, claims := t.frontends.At(key), slices.Clone(t.contested.At(key))
	if len(claims) == 0 && holder != nil {
		claims = append(claims, holder)
	}
	claims = slices.DeleteFunc(claims, func(f *Frontend) bool { return f == was })
	if is != nil {
		i, _ := slices.BinarySearchFunc(claims, is, compareRanks)
		claims = slices.Insert(claims, i, is)
	}

	u.disturbed = append(u.disturbed, either(was, is).Service.Name)
	if len(claims) > 1 {
		t.contested = t.contested.Set(key, claims)
	} else {
		t.contested = t.contested.Delete(key)
	}

	if len(claims) == 0 {
		t.indexRange(holder, nil)
		t.frontends = t.frontends.Delete(key)
	} else if claims[0] != holder {
		t.indexRange(holder, claims[0])
		t.frontends = t.frontends.Set(key, claims[0])
		u.disturbed = append(u.disturbed, claims[0].Service.Name)
		if holder != nil {
			u.disturbed = append(u.disturbed, holder.Service.Name)
		}
	}
}
