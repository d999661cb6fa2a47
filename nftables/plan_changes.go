package nftables

import (
	"iter"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// frontendsOf yields the frontends of one family.
func frontendsOf(t *servicemodel.Table, f *nft.Family) iter.Seq[*servicemodel.Frontend] {
	return func(yield func(*servicemodel.Frontend) bool) {
		for fe := range nocopy.Of(t).Frontends() {
			if fe.Key.Family() == f.Model && !yield(fe) {
				return
			}
		}
	}
}

// addressesOf yields the addresses of one family that belong into a set.
func addressesOf(t *servicemodel.Table, f *nft.Family, set string) iter.Seq[netip.Addr] {
	all := t.ClusterIPs()
	if set == setHairpins {
		all = t.Hairpins()
	}
	return func(yield func(netip.Addr) bool) {
		for a := range all {
			if servicemodel.FamilyOf(a) == f.Model && !yield(a) {
				return
			}
		}
	}
}

// changes calls fn with the frontends of one family that are new (old is nil), removed (new is nil)
// or changed, and then with unchanged frontends (old is new) that use a changed pool.
func changes(c *servicemodel.ChangeSet, f *nft.Family, fn func(old, new *servicemodel.Frontend)) {
	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			fe = fc.Old
		}
		if fe.Key.Family() == f.Model {
			fn(fc.Old, fc.New)
		}
	}
	var last servicemodel.PortName
	for _, pc := range c.Pools {
		if pc.Old == nil || pc.New == nil || pc.New.ID.Family != f.Model {
			continue // its frontends were added, removed or changed
		}
		if pc.New.ID.Service == last {
			continue // the other pool of a service port, planned together with the first
		}
		last = pc.New.ID.Service
		for _, fe := range nocopy.Of(c.New).FrontendsOf(last) {
			old := nocopy.Of(c.Old).Frontend(fe.Key)
			if fe.Key.Family() == f.Model && old != nil && old.Equal(fe) {
				fn(fe, fe)
			}
		}
	}
}

// frontend plans the differences of a frontend: see [changes].
func (pl *planner) frontend(p *plan, t *tablePlan, old, new *servicemodel.Frontend) {
	switch {
	case old == nil:
		pl.w.elements(p.c.New, new, t.add)
	case new == nil:
		pl.w.elements(p.c.Old, old, t.del)
	case old == new:
		pl.poolsChanged(p, t, new)
	default:
		pl.changed(p, t, old, new)
	}
}

// changed plans a changed frontend. It compares the elements of both and leaves equal elements
// alone.
func (pl *planner) changed(p *plan, t *tablePlan, old, new *servicemodel.Frontend) {
	id := func(name string, e nft.Elem) string {
		return name + "\x00" + string(e.Key) + string(e.KeyEnd)
	}
	before, kept := map[string]string{}, map[string]bool{}
	pl.w.frontend(p.c.Old, old, func(name string, e nft.Elem) {
		before[id(name, e)] = string(e.Data) + string(e.UserData)
	})
	pl.w.frontend(p.c.New, new, func(name string, e nft.Elem) {
		if v, ok := before[id(name, e)]; ok && v == string(e.Data)+string(e.UserData) {
			kept[id(name, e)] = true
			return
		}
		t.add(name, e)
	})
	pl.w.frontend(p.c.Old, old, func(name string, e nft.Elem) {
		if !kept[id(name, e)] {
			t.del(name, e)
		}
	})
	oldInternal, oldExternal := nocopy.Of(p.c.Old).PoolsOf(old)
	newInternal, newExternal := nocopy.Of(p.c.New).PoolsOf(new)
	pl.w.slots(new, false, oldInternal, newInternal, t.del, t.add)
	pl.w.slots(new, true, oldExternal, newExternal, t.del, t.add)
}

// poolsChanged plans the pools of a frontend. Its other elements stay.
func (pl *planner) poolsChanged(p *plan, t *tablePlan, fe *servicemodel.Frontend) {
	oldInternal, oldExternal := nocopy.Of(p.c.Old).PoolsOf(fe)
	newInternal, newExternal := nocopy.Of(p.c.New).PoolsOf(fe)
	change := func(outside bool, old, new *servicemodel.Pool) {
		if old == nil || old.Equal(new) {
			return
		}
		pl.verdictChanged(t, fe, outside, old, new)
		pl.w.slots(fe, outside, old, new, t.del, t.add)
		if fe.AffinityService {
			pl.w.byAddress(fe, outside, old, new, t.del)
			pl.w.byAddress(fe, outside, new, old, t.add)
		}
	}
	change(false, oldInternal, newInternal)
	change(true, oldExternal, newExternal)
}

// verdictChanged plans how packets to a frontend find the size of its pool.
func (pl *planner) verdictChanged(t *tablePlan, fe *servicemodel.Frontend, outside bool, old,
	new *servicemodel.Pool) {
	if wayOfPool(old) != atRandom || wayOfPool(new) != atRandom {
		k := kindOf(fe.Key)
		if leafOf(k, outside, old) != leafOf(k, outside, new) {
			pl.w.key = nft.AppendFrontend(pl.w.key[:0], fe.Key)
			pl.w.verdict(fe, outside, old, t.del)
			pl.w.verdict(fe, outside, new, t.add)
		}
		return
	}
	over := setOver
	if outside {
		over = setExternalOver
	}
	was, is := classOf(slotCount(old)), classOf(slotCount(new))
	move := func(to sink, from, into int) {
		for than := range into {
			if isOver(into, than) && !isOver(from, than) {
				to(pl.w.names.get(kindOf(fe.Key).prefix, over, most(than)),
					nft.Elem{Key: nft.AppendFrontend(pl.w.key[:0], fe.Key)})
			}
		}
	}
	move(t.del, is, was)
	move(t.add, was, is)
}

// addresses plans the changes to a set of addresses.
func (pl *planner) addresses(t *tablePlan, set string, changes []servicemodel.AddrChange) {
	for _, ac := range changes {
		switch {
		case servicemodel.FamilyOf(ac.Addr) != t.f.Model:
		case ac.Added:
			pl.w.address(set, ac.Addr, t.add)
		default:
			pl.w.address(set, ac.Addr, t.del)
		}
	}
}
