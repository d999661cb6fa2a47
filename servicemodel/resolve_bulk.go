package servicemodel

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/persist"
)

// rebuild resolves every service and makes all maps anew, in time little more than linear. What
// equals its counterpart in prev, which may be nil, is shared with it, entry by entry. The result
// is the one that moving there service by service would give. edits are all that there is in s.
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
	b.t.memory = &memory{state: s, view: b.view, footprints: b.footprints.Map()}
	return b.t
}

type bulk struct {
	resolver
	prev *Table
	t    *Table // no part of the bulk, which would live as long
	lost map[*Frontend]bool

	owned                persist.Builder[PortName, []*Frontend, portOrder]
	pools                persist.Builder[PoolID, *Pool, poolIDOrder]
	health               persist.Builder[Name, HealthCheck, nameOrder]
	footprints           persist.Builder[Name, footprint, nameOrder]
	clusterIPs, hairpins []netip.Addr
}

// oldClaims returns the claims of a service in prev.
func (b *bulk) oldClaims(n Name) []*Frontend {
	if !b.prev.remembers() {
		return nil
	}
	old, _ := b.prev.memory.footprints.Get(n)
	return old.claims
}

// settleClaims finds out who wins where.
func (b *bulk) settleClaims(resolved []resolution) {
	type entry struct {
		key FrontendKey // beside the pointer, for sorting's sake
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
		return claimOf(x.f).compare(claimOf(y.f))
	})
	var won persist.Builder[FrontendKey, *Frontend, keyOrder]
	var lost persist.Builder[claimKey, *Frontend, claimOrder]
	b.lost = make(map[*Frontend]bool)
	for _, e := range all {
		if !won.Append(e.key, e.f) {
			lost.Append(claimOf(e.f), e.f)
			b.lost[e.f] = true
		}
	}
	b.t.frontends, b.t.losers = won.Map(), lost.Map()
}

// add enters what depends on which claims of the service won.
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
		b.health.Append(n, *res.health)
	}
	b.footprints.Append(n, footprint{claims: res.claims, clusterIPs: res.clusterIPs,
		hairpins: hairpins})
}
