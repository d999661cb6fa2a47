package nftables

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// planner makes plans. It has no connection to the kernel: the caller says what the kernel holds.
type planner struct {
	table  string
	place  place
	w      *writer
	tables []*table
	// rules are the node-wide rules of the programs in the tables.
	rules servicemodel.Rules
	// owning is set if parts were observed. Then only these change.
	owning *owning
	// version is the version in the kernel. first returns the epoch of a new instance.
	version version
	first   func() uint32
	// refused says that the kernel refused to write a broken table anew. It is then deleted first.
	refused bool
	// complete says that a commit made all necessary tables since the last observation.
	complete bool
	localnet localnet
	// capacity returns the size of a set that begins with n elements. 0 lets the set grow.
	capacity func(n int) uint32
}

func newPlanner(name string, first func() uint32) planner {
	pl := planner{table: name, w: newWriter(), capacity: capacity, first: first}
	for _, f := range nft.Families {
		pl.tables = append(pl.tables, &table{f: f})
	}
	return pl
}

// plan is what a commit sends: the changes to each table, in their order, and the version.
type plan struct {
	table  string
	c      *servicemodel.ChangeSet
	tables []*tablePlan
	// have is the version that the plan is for. next is the version that it leads to.
	have, next version
	// forget says which clients are forgotten after the commit. leavesClients says that the maps
	// may still have some of them.
	forget        []forget
	leavesClients bool
	// sysctl is the sysctl that the commit also sets, as text.
	sysctl string
	// mark commits a version with another mark even if nothing else changes.
	mark bool
	// anew says that the plan deletes the table that has the version.
	anew bool
}

// spares reports whether clients stay in a table whose other contents are written anew.
func (p *plan) spares() bool {
	return slices.ContainsFunc(p.tables, func(t *tablePlan) bool { return len(t.spare) > 0 })
}

// empty reports whether there is nothing to send.
func (p *plan) empty() bool {
	return !p.mark && !slices.ContainsFunc(p.tables, func(t *tablePlan) bool { return !t.empty() })
}

// tablePlan is the plan for one table. It is written in this order: the table, its sets, the chains
// with their rules, the elements to delete and to add, and the sets to delete.
type tablePlan struct {
	f     *nft.Family
	place *place // its chains of the user keep their rules
	// have is the table as it is, and next its skeleton after the plan.
	have *table
	next skeleton
	// need is the shape that the changes need, or the shape of all frontends if the program is
	// written.
	need shape
	// rebuild deletes the table first. renew deletes what the table holds, except the user's chains
	// and remembered clients. spare are the affinity maps that stay.
	rebuild bool
	renew   bool
	spare   map[string]bool
	// create creates the table and its sets. Otherwise newSets are added to the existing sets.
	create   bool
	newSets  []*nft.Set
	goneSets []*nft.Set
	// program, if not nil, replaces the chains and rules.
	program    nft.Program
	goneChains []string
	// flushed sets lose all their elements before elements are added.
	flushed []*nft.Set
	sets    []*nft.Set // all sets after the plan, in their order
	ops     map[string]*setOps
	// del and add put the deletion and the addition of an element into the plan.
	del, add sink
	// leads is the change of how many frontends lead to each leaf.
	leads map[string]int
	// index is the content of the index of owners after the plan.
	index ownership
}

// setOps are the changes to the elements of one set.
type setOps struct {
	del, add nft.ElemList
}

// empty reports whether the plan leaves the table as it is.
func (t *tablePlan) empty() bool {
	// sets come and go with the rules of a program
	return !t.rebuild && !t.create && t.program == nil && len(t.ops) == 0
}

// newTablePlan returns a plan that leaves the table as it is.
func newTablePlan(pl *place, have *table) *tablePlan {
	t := &tablePlan{f: have.f, place: pl, have: have, next: have.skeleton}
	t.need.uses = have.ahead
	t.del = func(set string, e nft.Elem) {
		if t.opsOf(set).del.Add(e); e.Goto {
			t.lead(e, -1)
		}
	}
	t.add = func(set string, e nft.Elem) {
		if t.opsOf(set).add.Add(e); e.Goto {
			t.lead(e, 1)
		}
	}
	return t
}

// lead counts an element that leads to a leaf, or that does so no longer.
func (t *tablePlan) lead(e nft.Elem, n int) {
	if t.leads == nil {
		t.leads = map[string]int{}
	}
	t.leads[string(e.Data)] += n
}

func (t *tablePlan) opsOf(set string) *setOps {
	ops := t.ops[set]
	if ops == nil {
		ops = new(setOps)
		if t.ops == nil {
			t.ops = map[string]*setOps{}
		}
		t.ops[set] = ops
	}
	return ops
}

// plan makes the plan for a change set.
func (pl *planner) plan(c *servicemodel.ChangeSet) *plan {
	p := &plan{table: pl.table, c: c, have: pl.version,
		tables: make([]*tablePlan, 0, len(pl.tables))}
	rules := c.New.Rules()
	for _, have := range pl.tables {
		t := newTablePlan(&pl.place, have)
		p.tables = append(p.tables, t)
		switch {
		case t.have.exists && !t.f.ServedBy(&rules):
			t.rebuild, t.next = true, skeleton{}
		case t.have.exists && !t.have.broken:
			pl.change(p, t)
		case t.have.exists, slices.Contains(pl.tablesToMake(c), t.have):
			pl.write(p, t)
		}
	}

	// features that few services use
	if pl.owning != nil || pl.version.owners {
		pl.planOwners(p)
	}
	if slices.ContainsFunc(pl.tables, func(t *table) bool { return len(t.shape.affinity) > 0 }) {
		pl.planForgetting(p)
	}

	var home *nft.Family // of the version: its present one, or the first one with a table
	for _, t := range p.tables {
		if t.create || t.renew {
			t.size(pl.capacity)
		}
		p.anew = p.anew || t.f == p.have.home && t.rebuild
		if t.next.exists && (home == nil || t.f == p.have.home) {
			home = t.f
		}
	}
	unswept := pl.version.unswept || p.leavesClients || p.spares()
	p.next = pl.version.next(p.anew, home, pl.first, unswept, pl.owning != nil)
	return p
}

// standing returns the first table that exists, or nil.
func (pl *planner) standing() *table {
	for _, t := range pl.tables {
		if t.exists {
			return t
		}
	}
	return nil
}

// tablesToMake returns the tables that do not exist and that a change set needs: for new frontends,
// for node-wide rules, or as an anchor. The anchor is made for a state without services: without a
// table, a reading could not tell such a state from a missing instance. Parts need none, because an
// instance of parts goes with the last of them.
func (pl *planner) tablesToMake(c *servicemodel.ChangeSet) (l []*table) {
	if pl.complete && c.Rules == nil && len(c.Frontends) == 0 {
		return nil
	}
	rules := c.New.Rules()
	var anchor *table
	stands := pl.owning != nil || rules.MasqueradeMark == 0
	type change = servicemodel.Change[servicemodel.Frontend]
	for _, t := range pl.tables {
		switch {
		case !t.f.ServedBy(&rules):
		case t.exists:
			stands = true
		case len(t.f.Own(rules.ServiceCIDRs)) > 0,
			t.f == nft.IPv4 && rendering.WantsRouteLocalnet(&rules),
			slices.ContainsFunc(c.Frontends, func(fc change) bool {
				return fc.New != nil && fc.New.Key.Family() == t.f.Model
			}):
			l = append(l, t)
		case anchor == nil:
			anchor = t
		}
	}
	if len(l) == 0 && !stands && anchor != nil {
		l = append(l, anchor)
	}
	return l
}

// change plans the differences in a table that stays.
func (pl *planner) change(p *plan, t *tablePlan) {
	if t.sets = t.have.sets; t.sets == nil {
		t.sets = setsOf(t.f, &t.have.shape)
	}
	for name, l := range t.have.drift {
		l.Each(t.opsOf(name).del.Add)
	}
	changes(p.c, t.f, func(old, new *servicemodel.Frontend) {
		switch {
		case new == nil:
			pl.w.elements(p.c.Old, old, t.del)
		case old == new:
			pl.poolsChanged(p, t, new)
		case old == nil:
			t.need.addFrontend(p.c.New, new)
			pl.w.elements(p.c.New, new, t.add)
		default:
			t.need.addFrontend(p.c.New, new)
			pl.changed(p, t, old, new)
		}
	})
	addresses := [][]servicemodel.AddrChange{p.c.ClusterIPs, p.c.Hairpins}
	if pl.owning != nil {
		addresses = nil // the index of owners counts them
	}
	for i, l := range addresses {
		for _, ac := range l {
			switch {
			case servicemodel.FamilyOf(ac.Addr) != t.f.Model:
			case ac.Added:
				pl.w.address(addressSets[i], ac.Addr, t.add)
			default:
				pl.w.address(addressSets[i], ac.Addr, t.del)
			}
		}
	}
	if r := p.c.Rules; r != nil {
		pl.w.writeSettings(*r.Old, pl.localnet.before, t.del)
		pl.w.writeSettings(*r.New, pl.localnet.before, t.add)
	}
	leaves := t.have.shape.leaves
	if t.leads != nil || t.have.shape.has(ways) {
		leaves = pl.planLeaves(p, t)
	}
	have := &t.have.shape
	lacks := t.need.uses&^have.uses != 0 ||
		slices.ContainsFunc(t.need.affinity, func(a affinity) bool {
			return !slices.Contains(have.affinity, a)
		})
	if lacks || t.have.stale || p.c.Rules != nil {
		pl.reshape(p, t, leaves)
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
		for _, fe := range c.New.FrontendsOf(last) {
			old := c.Old.Frontend(fe.Key)
			if fe.Key.Family() == f.Model && old != nil && old.Equal(fe) {
				fn(fe, fe)
			}
		}
	}
}

// changed plans a changed frontend.
func (pl *planner) changed(p *plan, t *tablePlan, old, new *servicemodel.Frontend) {
	t.differ(func(to sink) { pl.w.frontend(p.c.Old, old, to) },
		func(to sink) { pl.w.frontend(p.c.New, new, to) })
	oldInternal, oldExternal := p.c.Old.PoolsOf(old)
	newInternal, newExternal := p.c.New.PoolsOf(new)
	pl.w.pool(old, new, false, oldInternal, newInternal, t.del, t.add)
	pl.w.pool(old, new, true, oldExternal, newExternal, t.del, t.add)
}

// differ compares elements as they were and as they are, and leaves equal elements alone.
func (t *tablePlan) differ(was, is func(to sink)) {
	id := func(name string, e nft.Elem) string {
		return name + "\x00" + string(e.Key) + string(e.KeyEnd)
	}
	before, kept := map[string]string{}, map[string]bool{}
	was(func(name string, e nft.Elem) {
		before[id(name, e)] = string(e.Data) + string(e.UserData)
	})
	is(func(name string, e nft.Elem) {
		if v, ok := before[id(name, e)]; ok && v == string(e.Data)+string(e.UserData) {
			kept[id(name, e)] = true
			return
		}
		t.add(name, e)
	})
	was(func(name string, e nft.Elem) {
		if !kept[id(name, e)] {
			t.del(name, e)
		}
	})
}

// poolsChanged plans the pools of a frontend. Its other elements stay.
func (pl *planner) poolsChanged(p *plan, t *tablePlan, fe *servicemodel.Frontend) {
	oldInternal, oldExternal := p.c.Old.PoolsOf(fe)
	newInternal, newExternal := p.c.New.PoolsOf(fe)
	change := func(outside bool, old, new *servicemodel.Pool) {
		if old == nil || old.Equal(new) {
			return
		}
		pl.w.key = nft.AppendFrontend(pl.w.key[:0], fe.Key)
		sameVerdict := wayOf(old)|wayOf(new) == atRandom && // packets find their size alike
			classOf(slotCount(old)) == classOf(slotCount(new))
		if !sameVerdict {
			t.need.addPool(new)
			t.differ(func(to sink) { pl.w.verdict(fe, outside, old, to) },
				func(to sink) { pl.w.verdict(fe, outside, new, to) })
		}
		pl.w.pool(fe, fe, outside, old, new, t.del, t.add)
	}
	change(false, oldInternal, newInternal)
	change(true, oldExternal, newExternal)
}

// frontendsOf yields the frontends of one family.
func frontendsOf(t *servicemodel.Table, f *nft.Family) iter.Seq[*servicemodel.Frontend] {
	return func(yield func(*servicemodel.Frontend) bool) {
		for fe := range t.Frontends() {
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
