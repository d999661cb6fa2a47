package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// alone reports whether the plan changes the companion tables and nothing else. It takes one
// transaction then.
func (p *plan) alone() bool {
	return len(p.up)+len(p.down)+p.device.len()+p.network.len() == 0
}

// when returns the transaction in which frontends become what is wanted, and the one in which the
// companion forgets what is gone.
func (p *plan) when() (open, end int) {
	switch {
	case p.alone():
		return stageRestrict, stageRestrict
	case len(p.down)+len(p.network.restore)+p.device.len() == 0:
		return stageEnd, stageEnd
	case len(p.up) == 0:
		return stageRestrict, stageEnd
	}
	return stageOpen, stageEnd
}

// planVersion plans what becomes of the version, if the plan does anything.
func (pl *planner) planVersion(p *plan) {
	nothing := p.alone() && !pl.have.companion.version.writing
	for s := range p.stages {
		for i := range p.stages[s] {
			nothing = nothing && p.stages[s][i].empty()
		}
	}
	if nothing {
		return
	}
	first, last := &p.stages[stageRestrict][0], &p.stages[stageEnd][0]
	v := pl.have.companion.version.next(!p.alone())
	first.replace(pl.have.companion.version, v)
	p.versions = [3]version{v, v, v}
	if v.writing {
		p.versions[stageEnd] = v.next(false)
		last.replace(v, p.versions[stageEnd])
	}
}

// planTables plans what is done to the companion tables.
func (pl *planner) planTables(p *plan, c *servicemodel.ChangeSet, keys []servicemodel.FrontendKey) {
	for i, f := range nft.Families {
		if !pl.have.companion.whole[i] || c.Rules != nil {
			pl.planNewTable(p, i, c)
			continue
		}
		pl.planAddrs(p, i, c)
		if f == nft.IPv4 {
			pl.planTunables(p)
		}
		for _, k := range keys {
			if nft.FamilyIndex(k.Addr) == i {
				was := pl.have.companion.records[k]
				p.planRecord(i, was, p.path(was, p.records[k]), stageRestrict)
			}
		}
	}
}

// path returns what a record is after each transaction, on its way from one to another.
func (p *plan) path(old, now *record) (l [3]*record) {
	open, end := p.when()
	if now != nil && now.fe.Sources != nil &&
		(old == nil || !slices.Equal(old.fe.Sources, now.fe.Sources)) {
		p.restricts = true
	}
	for s := range l {
		switch {
		case s >= end:
			l[s] = now
		case s >= open:
			l[s] = now.stillRestricted(old)
		default:
			l[s] = old.restricted(now)
		}
	}
	return l
}

// planRecord plans what a record becomes, from a transaction on.
func (p *plan) planRecord(i int, from *record, path [3]*record, stage int) {
	for s := stage; s < len(path); s++ {
		if !from.equal(path[s]) {
			tp := &p.stages[s][i]
			diffElements(from, path[s], tp.sink(tp.del), tp.sink(tp.add))
		}
		from = path[s]
	}
}

// restricted returns what a record is after the first transaction on its way to another: the new
// one, if there was none; else the old one, with the source ranges of the new one, if it has any.
func (r *record) restricted(now *record) *record {
	switch {
	case r == nil:
		return now
	case now == nil || now.fe.Sources == nil:
		return r
	}
	return r.withSources(now.fe.Sources)
}

// stillRestricted returns what a record is until what the old one led to is gone: the old one, if
// there is no new one; else the new one, with the source ranges of the old one if it has none.
func (r *record) stillRestricted(old *record) *record {
	switch {
	case r == nil:
		return old
	case old == nil || r.fe.Sources != nil || old.fe.Sources == nil:
		return r
	}
	return r.withSources(old.fe.Sources)
}

// withSources returns a record with other source ranges.
func (r *record) withSources(l []netip.Prefix) *record {
	next, fe := *r, *r.fe
	fe.Sources = l
	next.fe = &fe
	return &next
}

// planAddrs plans the changes of the sets of addresses: new ones come first, and old ones go last.
func (pl *planner) planAddrs(p *plan, i int, c *servicemodel.ChangeSet) {
	_, end := p.when()
	first, last := &p.stages[stageRestrict][i], &p.stages[end][i]
	change := func(set string, a netip.Addr, added bool) {
		switch {
		case nft.FamilyIndex(a) != i:
		case added:
			first.sink(first.add)(set, addrElem(set, a))
		default:
			last.sink(last.del)(set, addrElem(set, a))
		}
	}
	for _, ch := range c.ClusterIPs {
		change(setClusterIPs, ch.Addr, ch.Added)
	}
	for _, ch := range c.Hairpins {
		change(setHairpins, ch.Addr, ch.Added)
	}
	for _, a := range pl.have.companion.addrs {
		if !slices.Contains(p.addrs, a) {
			change(setNodeAddrs, a, false)
		}
	}
	for _, a := range p.addrs {
		if !slices.Contains(pl.have.companion.addrs, a) {
			change(setNodeAddrs, a, true)
		}
	}
}

// planNewTable plans a table from nothing, in place of the one that is there. It has the old
// records that are known until what they led to is gone.
func (pl *planner) planNewTable(p *plan, i int, c *servicemodel.ChangeSet) {
	f, tp := nft.Families[i], &p.stages[stageRestrict][i]
	tp.rebuild, tp.create = pl.have.companion.exists[i], true
	tp.sets, tp.program = setsOf(f), newProgram(f, c.New.Rules())
	add := tp.sink(tp.add)
	keys := slices.Collect(maps.Keys(pl.have.companion.records))
	for fe := range shared.Of(c.New).Frontends() {
		keys = append(keys, fe.Key)
		if nft.FamilyIndex(fe.Key.Addr) == i && p.records[fe.Key] == nil {
			p.records[fe.Key] = pl.record(p, c.New, fe)
		}
	}
	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	for _, k := range slices.Compact(keys) {
		if nft.FamilyIndex(k.Addr) != i {
			continue
		}
		path := p.path(pl.have.companion.records[k], p.records[k])
		path[stageRestrict].elements(add)
		p.planRecord(i, path[stageRestrict], path, stageOpen)
	}
	for a := range c.New.ClusterIPs() {
		addAddr(add, i, setClusterIPs, a)
	}
	for a := range c.New.Hairpins() {
		addAddr(add, i, setHairpins, a)
	}
	for _, a := range p.addrs {
		addAddr(add, i, setNodeAddrs, a)
	}
	for _, e := range settingElems(c.New.Rules()) {
		add(setSettings, e)
	}
	if f == nft.IPv4 {
		pl.planNewTunables(p)
	}
}

// addAddr adds an address of a family to one of the sets of addresses.
func addAddr(add func(string, nft.Elem), i int, set string, a netip.Addr) {
	if nft.FamilyIndex(a) == i {
		add(set, addrElem(set, a))
	}
}
