package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// rebuild resolves every service and rebuilds all maps, in almost linear time. It shares entries
// with prev, which may be nil, if they are equal there. The result is the same as moving prev to s
// service by service. edits must list all services of s.
func rebuild(prev *Table, s State, edits []edit) *Table {
	b := bulk{resolver: resolver{view: s.viewpoint().view()}, prev: prev, t: &Table{}}
	b.t.rules = s.viewpoint().rules()
	resolved := make([]resolution, len(edits))
	for i, e := range edits {
		resolved[i] = b.resolve(e.service, e.endpoints, b.oldClaims(e.name))
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

func (b *bulk) oldClaims(n Name) []*Frontend {
	if !b.prev.remembers() {
		return nil
	}
	old, _ := b.prev.memory.footprints.Get(n)
	return old.claims
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
		b.pools.Append(p.ID, arrange(b.prev.pool(p.ID), p))
	}
	b.clusterIPs = append(b.clusterIPs, res.clusterIPs...)
	b.hairpins = append(b.hairpins, hairpins...)
	if res.health != nil {
		b.health.Append(n, res.health)
	}
	b.footprints.Append(n, footprint{claims: res.claims, clusterIPs: res.clusterIPs,
		hairpins: hairpins})
}
