package nftables

import (
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
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
	version  version
	first    func() uint32
	localnet localnet
	// capacity returns the size of a set that begins with n elements. 0 lets the set grow.
	capacity func(n int) uint32
}

func newPlanner(table string, first func() uint32) planner {
	return planner{table: table, w: newWriter(), tables: newTables(), capacity: capacity,
		first: first}
}

// plan is what a commit sends: the changes to each table, in their order, and the version.
type plan struct {
	table  string
	c      *servicemodel.ChangeSet
	tables []*tablePlan
	// have is the version that the plan is for. next is the version that it leads to.
	have, next version
	forget     []forget
	// sysctl is the sysctl that the commit also sets, as text.
	sysctl string
	// mark commits a version with another mark even if nothing else changes.
	mark bool
}

// empty reports whether there is nothing to send.
func (p *plan) empty() bool {
	return !p.mark && !slices.ContainsFunc(p.tables, func(t *tablePlan) bool { return !t.empty() })
}

// of returns the plan for the table of an address.
func (p *plan) of(a netip.Addr) *tablePlan { return p.tables[nft.FamilyIndex(a)] }

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
	// rebuild deletes the table first.
	rebuild bool
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
	return !t.rebuild && !t.create && t.program == nil && len(t.newSets)+len(t.goneSets) == 0 &&
		t.elements() == 0
}

// elements counts the elements that are added and deleted.
func (t *tablePlan) elements() (n int) {
	for _, ops := range t.ops {
		n += ops.del.Len + ops.add.Len
	}
	return n
}

// newTablePlan returns a plan that leaves the table as it is.
func newTablePlan(pl *place, have *table) *tablePlan {
	t := &tablePlan{f: have.f, place: pl, have: have, next: have.skeleton}
	t.need.ways = have.ahead
	t.del = func(set string, e nft.Elem) {
		t.opsOf(set).del.Add(e)
		t.lead(e, -1)
	}
	t.add = func(set string, e nft.Elem) {
		t.opsOf(set).add.Add(e)
		t.lead(e, 1)
	}
	return t
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
	for _, t := range pl.tables {
		p.tables = append(p.tables, newTablePlan(&pl.place, t))
	}
	for _, fc := range c.Frontends {
		if fc.New != nil {
			p.of(fc.New.Key.Addr).need.addFrontend(fc.New)
		}
	}
	for _, pc := range c.Pools {
		if pc.New == nil {
			continue
		}
		for _, t := range p.tables {
			if pc.New.ID.Family == t.f.Model {
				t.need.addPool(pc.New)
			}
		}
	}
	rules := nocopy.Of(c.New).Rules()
	anchor := pl.anchor(c)
	for _, t := range p.tables {
		switch {
		case t.have.exists && !t.f.ServedBy(rules):
			t.rebuild, t.next = true, skeleton{}
		case t.have.exists && !t.have.broken:
			pl.change(p, t)
		case t.have.exists, t.have == anchor, pl.wanted(c, t.have):
			pl.write(p, t)
		}
	}
	for _, plan := range pl.features(c) {
		plan(p)
	}
	for _, t := range p.tables {
		if t.create {
			t.size(pl.capacity)
		}
	}
	p.next = pl.version.next(p.losesVersion(), p.home(), pl.first,
		pl.version.unswept || p.leavesClients(), pl.owning != nil)
	return p
}

// features are the plans of the features that the tables or the change set use.
func (pl *planner) features(c *servicemodel.ChangeSet) (l []func(*plan)) {
	if pl.owning != nil || pl.version.owners {
		l = append(l, pl.planOwners)
	}
	if slices.ContainsFunc(pl.tables, func(t *table) bool { return len(t.shape.affinity) > 0 }) {
		l = append(l, pl.planForgetting)
	}
	if pl.usesLocalnet(c) {
		l = append(l, pl.planLocalnet)
	}
	return l
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

// anchor returns the table to be made for a state without services, or nil if there are tables.
// Without a table, a reading could not tell such a state from a missing instance. Parts need none,
// because an instance of parts goes with the last of them.
func (pl *planner) anchor(c *servicemodel.ChangeSet) *table {
	rules := nocopy.Of(c.New).Rules()
	if pl.owning != nil || rules.MasqueradeMark == 0 {
		return nil
	}
	var first *table
	for _, t := range pl.tables {
		if t.exists && t.f.ServedBy(rules) || pl.wanted(c, t) {
			return nil
		}
		if first == nil && t.f.ServedBy(rules) {
			first = t
		}
	}
	return first
}

// wanted reports whether a table is needed for new frontends or for node-wide rules.
func (pl *planner) wanted(c *servicemodel.ChangeSet, t *table) bool {
	rules := nocopy.Of(c.New).Rules()
	if !t.f.ServedBy(rules) {
		return false
	}
	return len(t.f.Own(rules.ServiceCIDRs)) > 0 ||
		t.f == nft.IPv4 && rendering.WantsRouteLocalnet(rules) ||
		slices.ContainsFunc(c.Frontends, func(fc servicemodel.Change[servicemodel.Frontend]) bool {
			return fc.New != nil && fc.New.Key.Family() == t.f.Model
		})
}

// losesVersion reports whether the plan deletes the table that has the version.
func (p *plan) losesVersion() bool {
	return slices.ContainsFunc(p.tables, func(t *tablePlan) bool {
		return t.f == p.have.home && t.rebuild
	})
}

// home returns the family whose table has the version after the plan, if the version moves: its
// present one, or else the first one with a table.
func (p *plan) home() (home *nft.Family) {
	for _, t := range p.tables {
		if t.next.exists && (home == nil || t.f == p.have.home) {
			home = t.f
		}
	}
	return home
}

// write plans a table from nothing.
func (pl *planner) write(p *plan, t *tablePlan) {
	t.rebuild, t.create = t.have.exists, true
	t.needAll(p.c.New)
	t.sets = setsOf(t.f, &t.need)
	t.newSets = t.sets
	for fe := range frontendsOf(p.c.New, t.f) {
		pl.w.elements(p.c.New, fe, t.add)
	}
	for _, set := range addressSets {
		if pl.owning == nil { // with owning set, the index of owners counts them
			for a := range addressesOf(p.c.New, t.f, set) {
				pl.w.address(set, a, t.add)
			}
		}
	}
	pl.w.writeSettings(p.c.New.Rules(), pl.localnet.before, t.add)
	t.need.leaves = sortedKeys(t.leads)
	t.next = skeleton{exists: true, shape: t.need, counts: map[string]int{},
		leads: map[string]int{}}
	t.program = pl.place.program(t.f, p.c.New.Rules(), &t.need)
}

// size sets the sizes of the sets in a table that is written from nothing.
func (t *tablePlan) size(capacity func(n int) uint32) {
	for _, s := range t.newSets {
		if ops := t.ops[s.Name]; ops != nil && s.Size == 0 && s.Flags&nft.SetInterval == 0 {
			n := ops.add.Len
			if strings.HasSuffix(s.Name, string(byMaglev)+setEndpoints) {
				n = max(n, firstMaglev)
			}
			s.Size = capacity(n)
		}
	}
}

// firstMaglev is for how many entries a map of Maglev is made at least. So one with the 1,021
// entries of a first service has room for those of 64, and 1 MB of buckets.
const firstMaglev = 16 * 1021

// capacity gives a set that begins with many elements room for four times as many. The kernel then
// makes a hash table that is large enough from the start. Filling it takes half the time of filling
// one that grows. It is never rehashed, so it can be read at any time. If the set is full, the
// kernel returns ENFILE, and the table is made anew.
//
// A set of hundreds of thousands gets room for twice as many at least, and just as many as need no
// more buckets (nft_hash_buckets). The kernel clears their memory in one transaction: for a million
// elements 32 MB in 50 ms, not 128 MB in 285 ms.
func capacity(n int) uint32 {
	if n < 1000 {
		return 0
	}
	if n < 1<<18 {
		return 1 << bits.Len(uint(4*n-1))
	}
	return 3 << (bits.Len(uint((8*n-1)/3)) - 2)
}

// needAll computes the shape that all frontends of the table need.
func (t *tablePlan) needAll(of *servicemodel.Table) {
	t.need = shape{}
	for fe := range frontendsOf(of, t.f) {
		t.need.addFrontend(fe)
	}
	for p := range nocopy.Of(of).Pools() {
		if p.ID.Family == t.f.Model {
			t.need.addPool(p)
		}
	}
}

// change plans the differences in a table that stays.
func (pl *planner) change(p *plan, t *tablePlan) {
	if t.sets = t.have.sets; t.sets == nil {
		t.sets = setsOf(t.f, &t.have.shape)
	}
	for name, l := range t.have.drift {
		l.Each(t.opsOf(name).del.Add)
	}
	changes(p.c, t.f, func(old, new *servicemodel.Frontend) { pl.frontend(p, t, old, new) })
	if pl.owning == nil { // with owning set, the index of owners counts them
		pl.addresses(t, setClusterIPs, p.c.ClusterIPs)
		pl.addresses(t, setHairpins, p.c.Hairpins)
	}
	if r := p.c.Rules; r != nil {
		pl.w.writeSettings(*r.Old, pl.localnet.before, t.del)
		pl.w.writeSettings(*r.New, pl.localnet.before, t.add)
	}
	leaves := pl.leaves(p, t)
	if t.have.stale || p.c.Rules != nil || !t.have.shape.covers(&t.need) {
		pl.reshape(p, t, leaves)
	} else {
		pl.releaf(p, t, leaves)
	}
	for _, s := range t.goneSets {
		// Deleting a set deletes its elements. But a chain cannot be deleted while elements of a
		// set that goes lead to it (before Linux 6.4, nft_map_deactivate).
		if !s.LeadsToChains() {
			delete(t.ops, s.Name)
		}
	}
}

// reshape rewrites the chains whose rules the present needs change. Sets that no rule needs any
// more are deleted.
func (pl *planner) reshape(p *plan, t *tablePlan, leaves []string) {
	t.needAll(p.c.New)
	t.need.ways.add(t.have.ahead)
	t.need.leaves = slices.DeleteFunc(slices.Clone(leaves), func(name string) bool {
		return pl.owning == nil && !t.leadsTo(name)
	})
	if pl.owning != nil { // nothing tells what other owners need
		t.need.add(&t.have.shape)
	}
	old := t.sets
	t.sets = setsOf(t.f, &t.need)
	t.newSets, t.goneSets = missing(t.sets, old), missing(old, t.sets)
	before := pl.place.program(t.f, p.c.Old.Rules(), &t.have.shape)
	t.program = pl.place.program(t.f, p.c.New.Rules(), &t.need)
	t.goneChains = goneChains(before, t.program)
	if !t.have.stale {
		t.program = changedChains(before, t.program)
	}
	t.next.shape, t.next.stale = t.need, false
}

func missing(from, in []*nft.Set) []*nft.Set {
	return slices.DeleteFunc(slices.Clone(from), func(s *nft.Set) bool {
		return slices.ContainsFunc(in, func(o *nft.Set) bool { return o.Name == s.Name })
	})
}

// changedChains returns the chains of a program that an old program does not have, or has with
// other rules.
func changedChains(old, new nft.Program) nft.Program {
	hashes := make(map[string][]uint64, len(old))
	for _, c := range old {
		hashes[c.Name] = c.Hashes()
	}
	return slices.DeleteFunc(new, func(c *nft.ProgramChain) bool {
		had, ok := hashes[c.Name]
		return ok && slices.Equal(had, c.Hashes())
	})
}

func goneChains(old, new nft.Program) []string {
	var l []string
	for _, c := range old {
		if !new.Has(c.Name) {
			l = append(l, c.Name)
		}
	}
	return l
}

// removes reports whether a change set removes the parts of owners by [planner.removal]: the last
// parts, or parts of another layout.
func (pl *planner) removes(c *servicemodel.ChangeSet) bool {
	return pl.owning != nil && nocopy.Of(c.New).Rules().MasqueradeMark == 0
}

// removal plans to delete the elements that are drift from tables of another layout. If no
// frontends are left, it plans to delete the tables.
func (pl *planner) removal(left int) *plan {
	p := &plan{table: pl.table, have: pl.version, next: pl.version.next(false, pl.version.home,
		pl.first, pl.version.unswept, false)}
	if left == 0 {
		p.next.epoch = p.have.epoch // the epoch goes with its table
	}
	for _, have := range pl.tables {
		if !have.exists {
			continue
		}
		t := &tablePlan{f: have.f, rebuild: left == 0, ops: map[string]*setOps{}}
		p.tables = append(p.tables, t)
		for _, name := range sortedKeys(have.drift) {
			if l := have.drift[name]; left > 0 && l.Len > 0 {
				t.sets = append(t.sets, &nft.Set{Name: name})
				t.ops[name] = &setOps{del: *l}
			}
		}
	}
	return p
}
