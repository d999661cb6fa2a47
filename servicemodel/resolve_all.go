package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// resolveAll resolves every service and rebuilds all maps, in almost linear time. It shares equal
// entries with prev, which may be nil. The result is the same as the result of updates service by
// service. old are the footprints of prev.
func resolveAll(prev *Table, old footprints, s State) *Table {
	b := bulk{resolver: resolver{view: s.viewpoint().view()}, prev: prev.orEmpty(), t: &Table{}}
	b.t.rules = s.viewpoint().rules()
	b.warned = b.warned.with(Name{}, s.viewpoint().warnings())
	resolved := make([]resolution, 0, s.entries.Len())
	hairpins, clusterIPs := 0, 0
	for name, e := range s.entries.All() {
		r := b.resolve(name, e, old.At(name).claims)
		for _, p := range r.pools {
			hairpins += len(p.hairpins)
		}
		clusterIPs += len(r.clusterIPs)
		resolved = append(resolved, r)
	}

	b.compareAll(resolved)
	b.hairpins = make([]netip.Addr, 0, hairpins)
	b.clusterIPs = make([]netip.Addr, 0, clusterIPs)
	for i := range resolved {
		b.add(&resolved[i])
	}
	b.t.owned, b.t.pools, b.t.health = b.owned.Map(), b.pools.Map(), b.health.Map()
	b.t.clusterIPs, b.t.hairpins = countAddrs(b.clusterIPs), countAddrs(b.hairpins)
	b.t.memory = &memory{state: s, view: b.view, footprints: b.footprints.Map(),
		warnings: b.warned}
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
	warned               Warnings
	clusterIPs, hairpins []netip.Addr
}

// compareAll decides the winner of each key.
func (b *bulk) compareAll(resolved []resolution) {
	type claim struct {
		key FrontendKey // a copy, so that sorting need not follow the pointer
		f   *Frontend
	}
	n := 0
	for i := range resolved {
		n += len(resolved[i].claims)
	}
	all := make([]claim, 0, n)
	for i := range resolved {
		for _, f := range resolved[i].claims {
			all = append(all, claim{f.Key, f})
		}
	}

	slices.SortFunc(all, func(x, y claim) int {
		if c := x.key.Compare(y.key); c != 0 {
			return c
		}
		return compareRanks(x.f, y.f)
	})

	var won pmap.Builder[FrontendKey, *Frontend, keyHash]
	var contested pmap.Builder[FrontendKey, []*Frontend, keyHash]
	b.lost = make(map[*Frontend]bool)
	for key, claims := range groups(all, func(c claim) FrontendKey { return c.key }) {
		won.Append(key, claims[0].f)
		b.t.indexRange(nil, claims[0].f)
		if len(claims) == 1 {
			continue
		}
		list := []*Frontend{claims[0].f}
		for _, c := range claims[1:] {
			list, b.lost[c.f] = append(list, c.f), true
		}
		contested.Append(key, list)
	}

	b.t.frontends, b.t.contested = won.Map(), contested.Map()
}

// add adds the pools, addresses and lists that depend on the winning claims of the service.
func (b *bulk) add(res *resolution) {
	won := func(f *Frontend) bool { return !b.lost[f] }
	for port, own := range byPort(filter(res.claims, won)) {
		b.owned.Append(port, own)
	}
	used, hairpins := res.usedPools(won)
	for _, p := range used {
		b.pools.Append(p.ID, arrange(b.prev.pools.At(p.ID), p))
	}
	b.clusterIPs = append(b.clusterIPs, res.clusterIPs...)
	b.hairpins = append(b.hairpins, hairpins...)
	if res.health != nil {
		b.health.Append(res.name, res.health)
	}
	b.warned = b.warned.with(res.name, res.warnings)
	now := footprint{claims: res.claims, clusterIPs: res.clusterIPs, hairpins: hairpins}
	if !now.equal(footprint{}) {
		b.footprints.Append(res.name, now)
	}
}

// addrCounts is a set of addresses, with the number of services that contribute each address.
type addrCounts = pmap.Map[netip.Addr, int, addrHash]

// countAddrs builds a set of the addresses. It sorts addrs in place.
func countAddrs(addrs []netip.Addr) addrCounts {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var set pmap.Builder[netip.Addr, int, addrHash]
	for a, same := range groups(addrs, func(a netip.Addr) netip.Addr { return a }) {
		set.Append(a, len(same))
	}
	return set.Map()
}
