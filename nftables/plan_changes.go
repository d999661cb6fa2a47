package nftables

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// changes plans the elements that differ.
func (pl *planner) changes(i int) {
	f := nft.Families[i]
	del, add := pl.sink(i, true), pl.sink(i, false)
	pl.deleteDrift(i)
	pl.frontends(i, del, add)
	pl.poolChanges(f, del, add)
	if pl.owning != nil {
		pl.owned(i, del, add)
	} else {
		pl.addresses(i, setClusterIPs, pl.c.ClusterIPs, del, add)
		pl.addresses(i, setHairpins, pl.c.Hairpins, del, add)
	}
	if r := pl.c.Rules; r != nil {
		pl.w.writeSettings(r.Old, pl.localnet, del)
		pl.w.writeSettings(r.New, pl.localnet, add)
	}
	fp := &pl.p.families[i]
	for _, s := range fp.goneSets { // they go with their elements
		delete(fp.ops, s.Name)
	}
}

// deleteDrift plans to delete the elements that were found and do not belong.
func (pl *planner) deleteDrift(i int) {
	del := pl.sink(i, true)
	for _, name := range sortedKeys(pl.drift[i]) {
		pl.drift[i][name].Each(func(e nft.Elem) { del(name, e) })
	}
}

func sortedKeys[V any](m map[string]V) []string {
	l := make([]string, 0, len(m))
	for k := range m {
		l = append(l, k)
	}
	slices.Sort(l)
	return l
}

// frontends plans frontends that came, went or changed.
func (pl *planner) frontends(i int, del, add sink) {
	for _, fc := range pl.c.Frontends {
		switch {
		case fc.Old == nil:
			if nft.FamilyIndex(fc.New.Key.Addr) == i {
				pl.added(fc.New, add)
			}
		case nft.FamilyIndex(fc.Old.Key.Addr) != i:
		case fc.New == nil:
			pl.removed(fc.Old, del)
		default:
			pl.changed(fc.Old, fc.New, del, add)
		}
	}
}

func (pl *planner) added(fe *servicemodel.Frontend, add sink) {
	pl.w.frontend(pl.c.New, fe, add)
	internal, external := shared.Of(pl.c.New).PoolsOf(fe)
	pl.w.slots(fe, false, nil, internal, nil, add)
	pl.w.slots(fe, true, nil, external, nil, add)
}

func (pl *planner) removed(fe *servicemodel.Frontend, del sink) {
	pl.w.frontend(pl.c.Old, fe, del)
	internal, external := shared.Of(pl.c.Old).PoolsOf(fe)
	pl.w.slots(fe, false, internal, nil, del, nil)
	pl.w.slots(fe, true, external, nil, del, nil)
	if fe.Affinity > 0 {
		pl.p.forget = append(pl.p.forget, pl.forgetAll(fe))
	}
}

// changed plans a frontend that changed: the elements of both are compared, so that what stays is
// not touched.
func (pl *planner) changed(old, new *servicemodel.Frontend, del, add sink) {
	before := map[string]string{}
	pl.w.frontend(pl.c.Old, old, func(name string, e nft.Elem) {
		before[name+"\x00"+string(e.Key)+string(e.KeyEnd)] = string(e.UserData)
	})
	kept := map[string]bool{}
	pl.w.frontend(pl.c.New, new, func(name string, e nft.Elem) {
		id := name + "\x00" + string(e.Key) + string(e.KeyEnd)
		if ud, ok := before[id]; ok && ud == string(e.UserData) {
			kept[id] = true
			return
		}
		add(name, e)
	})
	pl.w.frontend(pl.c.Old, old, func(name string, e nft.Elem) {
		if !kept[name+"\x00"+string(e.Key)+string(e.KeyEnd)] {
			del(name, e)
		}
	})
	oldInternal, oldExternal := shared.Of(pl.c.Old).PoolsOf(old)
	newInternal, newExternal := shared.Of(pl.c.New).PoolsOf(new)
	pl.w.slots(new, false, oldInternal, newInternal, del, add)
	pl.w.slots(new, true, oldExternal, newExternal, del, add)
	pl.forgetChanged(old, new)
}

// poolChanges plans the frontends that did not change themselves but use a pool that did.
func (pl *planner) poolChanges(f *nft.Family, del, add sink) {
	var last servicemodel.PortName
	for _, pc := range pl.c.Pools {
		if pc.Old == nil || pc.New == nil || pc.New.ID.Family != f.Model {
			continue // its frontends came, went or changed
		}
		if pc.New.ID.Service == last {
			continue // the other pool of a service port, done together with the first
		}
		last = pc.New.ID.Service
		for _, fe := range shared.Of(pl.c.New).FrontendsOf(last) {
			old := shared.Of(pl.c.Old).Frontend(fe.Key)
			if fe.Key.Family() == f.Model && old != nil && old.Equal(fe) {
				pl.poolsChanged(fe, del, add)
			}
		}
	}
}

// poolsChanged plans the pools of a frontend: all of its other elements stay.
func (pl *planner) poolsChanged(fe *servicemodel.Frontend, del, add sink) {
	k := kindOf(fe.Key)
	oldInternal, oldExternal := shared.Of(pl.c.Old).PoolsOf(fe)
	newInternal, newExternal := shared.Of(pl.c.New).PoolsOf(fe)
	change := func(size string, external bool, old, new *servicemodel.Pool) {
		if old == nil || old.Equal(new) {
			return
		}
		if was, is := slotCount(old), slotCount(new); was != is {
			e := nft.Elem{Key: nft.AppendFrontend(pl.w.key[:0], fe.Key)}
			del(pl.w.names.get(k.prefix, size, was), e)
			add(pl.w.names.get(k.prefix, size, is), e)
		}
		pl.w.slots(fe, external, old, new, del, add)
	}
	change(setSize, false, oldInternal, newInternal)
	change(setExternalSize, true, oldExternal, newExternal)
	pl.forgetChanged(fe, fe)
}

// addresses plans a set of addresses.
func (pl *planner) addresses(i int, name string, changes []servicemodel.AddrChange, del, add sink) {
	for _, ac := range changes {
		if nft.FamilyIndex(ac.Addr) != i {
			continue
		}
		to := del
		if ac.Added {
			to = add
		}
		pl.address(name, ac.Addr, to)
	}
}

func (pl *planner) address(name string, a netip.Addr, to sink) {
	pl.w.key = appendAddrKey(pl.w.key[:0], name, a)
	to(name, nft.Elem{Key: pl.w.key})
}
