package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// alone reports whether the plan changes only the companion tables. Then it takes one transaction.
func (p *plan) alone() bool {
	return len(p.up)+len(p.down)+p.device.len()+p.network.len() == 0
}

// phase is the progress of the companion from the old frontends to the new frontends.
type phase uint8

const (
	restricted phase = iota // it also has new frontends and new source ranges of old frontends
	opened                  // it has the new frontends, and still the old frontends
	ended                   // it has only the new frontends
)

// phases returns the phase that each transaction of the plan reaches. A transaction skips a phase
// if nothing is sent before the next transaction.
func (p *plan) phases() [3]phase {
	switch {
	case p.alone():
		return [3]phase{ended, ended, ended}
	case len(p.down)+len(p.network.tunables.Restore)+p.device.len() == 0:
		return [3]phase{restricted, restricted, ended}
	case len(p.up) == 0:
		return [3]phase{opened, opened, ended}
	}

	return [3]phase{restricted, opened, ended}
}

// between returns the companion's record of a frontend in a phase. It is nil if the companion does
// not have the frontend.
func (ph phase) between(old, now *record) *record {
	switch {
	case ph == restricted && old != nil:
		return old.withSourcesOf(now)
	case ph == restricted:
		return now.withoutBlocks()
	case ph == opened && now == nil:
		return old.withoutBlocks()
	case ph == opened && now.fe.Sources == nil:
		return now.withSourcesOf(old)
	}

	return now
}

// withSourcesOf returns r with the source ranges of another record, or r if that has no source
// ranges.
func (r *record) withSourcesOf(o *record) *record {
	if o == nil || o.fe.Sources == nil {
		return r
	}
	next, fe := *r, *r.fe
	fe.Sources = o.fe.Sources
	next.fe = &fe
	return &next
}

// planVersion plans the change of the version, if the plan does anything.
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

// planTables plans the changes of the companion tables.
func (pl *planner) planTables(p *plan, c *servicemodel.ChangeSet, keys []servicemodel.FrontendKey) {
	for i, f := range nft.Families {
		p.growShape(i, keys)
		changed := keys
		anew := !pl.have.companion.whole[i] || c.Rules != nil ||
			p.shapes[i] != pl.have.companion.shapes[i]
		if anew {
			changed = pl.planNewTable(p, i, c)
		} else {
			pl.planAddrs(p, i, c)
		}

		if f == nft.IPv4 {
			pl.planTunables(p, anew)
		}
		for _, k := range changed {
			if nft.FamilyIndex(k.Addr) == i {
				pl.planRecord(p, i, k, anew)
			}
		}

		for s := range p.stages {
			p.stages[s][i].shape = p.shapes[i]
		}
	}
}

// planRecord plans the changes of a frontend's record in each transaction. A new table begins
// without records.
func (pl *planner) planRecord(p *plan, i int, k servicemodel.FrontendKey, anew bool) {
	old, now := pl.have.companion.records[k], p.records[k]
	if now != nil && now.fe.Sources != nil &&
		(old == nil || !slices.Equal(old.fe.Sources, now.fe.Sources)) {
		p.restricts = true
	}

	is := old
	if anew {
		is = nil
	}
	for s, ph := range p.phases() {
		next := ph.between(old, now)
		if !is.equal(next) {
			tp := &p.stages[s][i]
			diffElements(is, next, tp.del.put, tp.add.put)
		}

		is = next
	}
}

// planAddrs plans the changes of the sets of addresses. The first transaction adds addresses, and
// the first transaction that reaches the end phase deletes them.
func (pl *planner) planAddrs(p *plan, i int, c *servicemodel.ChangeSet) {
	phases := p.phases()
	end := slices.Index(phases[:], ended)
	first, last := &p.stages[stageRestrict][i], &p.stages[end][i]
	change := func(set string, a netip.Addr, added bool) {
		switch {
		case nft.FamilyIndex(a) != i:
		case added:
			first.add.put(set, addrElem(set, a))
		default:
			last.del.put(set, addrElem(set, a))
		}
	}

	for _, ch := range c.ClusterIPs {
		change(setClusterIPs, ch.Addr, ch.Added)
	}
	for _, ch := range c.Hairpins {
		change(setHairpins, ch.Addr, ch.Added)
	}
	was := pl.have.companion.addrs[setNodeAddrs]
	for _, a := range was {
		if !slices.Contains(p.addrs, a) {
			change(setNodeAddrs, a, false)
		}
	}

	for _, a := range p.addrs {
		if !slices.Contains(was, a) {
			change(setNodeAddrs, a, true)
		}
	}
}

// planNewTable plans a new table in place of the current table. It returns the frontends whose
// records the table gets. This includes the known old frontends, until their virtual servers are
// removed. A family that the node does not serve gets no record, and its old table is removed
// first.
func (pl *planner) planNewTable(p *plan, i int,
	c *servicemodel.ChangeSet) []servicemodel.FrontendKey {
	f, tp := nft.Families[i], &p.stages[stageRestrict][i]
	rules := c.New.Rules()
	tp.remove = pl.have.companion.exists[i]
	keys := pl.newTableKeys(p, i, c)
	tp.sets, tp.program, tp.create = tableOf(f, rules, pl.cfg.Mark, p.shapes[i])
	if tp.create {
		next := companion{rules: rules, addrs: addrsOf(c.New, p.addrs)}
		next.elements(f, tp.add.put)
	}

	return keys
}

// newTableKeys returns the frontends whose records a new table gets. It stores the new records, and
// the shape that all of them need.
func (pl *planner) newTableKeys(p *plan, i int,
	c *servicemodel.ChangeSet) []servicemodel.FrontendKey {
	rules := c.New.Rules()
	p.shapes[i] = 0
	if !nft.Families[i].ServedBy(&rules) {
		return nil
	}
	keys := slices.Collect(maps.Keys(pl.have.companion.records))
	for k, r := range pl.have.companion.records {
		if nft.FamilyIndex(k.Addr) == i {
			p.shapes[i] |= r.shape()
		}
	}

	for fe := range c.New.Frontends() {
		keys = append(keys, fe.Key)
		if nft.FamilyIndex(fe.Key.Addr) == i && p.records[fe.Key] == nil {
			p.records[fe.Key] = pl.record(p, c.New, fe)
		}
	}

	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	keys = slices.Compact(keys)
	p.growShape(i, keys)
	return keys
}
