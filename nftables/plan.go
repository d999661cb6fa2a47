package nftables

import (
	"math/bits"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// skeleton is what stands of one table in the kernel, apart from elements.
type skeleton struct {
	exists bool
	shape  shape
	stale  bool // the rules are not those of the shape and the observed node-wide rules
	broken bool // sets or chains are missing or of another kind: only making the table anew helps
	// counts is how many elements each set has, as far as it is known, but for what rules add.
	counts map[string]int
}

// compare returns what a look at the table says, which was sk when it was known last.
func (sk *skeleton) compare(now *skeleton) dataplane.Integrity {
	if now.exists != sk.exists || now.broken || now.stale || !now.shape.equal(&sk.shape) {
		return dataplane.Broken
	}
	result := dataplane.Intact
	for name, n := range sk.counts {
		got, told := now.counts[name]
		if told && got != n {
			return dataplane.Broken
		}
		if !told {
			result = dataplane.Touched
		}
	}
	return result
}

// plan is what a commit sends: for each family, in this order, the table, its sets, the elements to
// delete and to add, the chains with their rules, and the sets that go.
type plan struct {
	table    string
	families [2]familyPlan
	forget   []forget
	// have is the version that the plan is for, and next the one that it leads to.
	have, next version
	// owning is what the next commit about parts begins from.
	owning owning
	// sysctl is what else is set, as text.
	sysctl string
	// mark says that a version is committed although nothing else may change: one with another
	// mark.
	mark bool
}

// empty reports whether there is nothing to send.
func (p *plan) empty() bool {
	if p.mark {
		return false
	}
	for i := range p.families {
		if !p.families[i].empty() {
			return false
		}
	}
	return true
}

type familyPlan struct {
	f *nft.Family
	// next is the skeleton after the plan.
	next skeleton
	// rebuild deletes the table first.
	rebuild bool
	// create creates the table and its sets; without it, newSets are added to those that are there.
	create   bool
	newSets  []*nft.Set
	goneSets []*nft.Set
	// program is written anew if not nil.
	program    nft.Program
	goneChains []string
	// flushed sets lose all elements before any are added.
	flushed []*nft.Set
	// newRules are added to their chains; with a program there are none.
	newRules []chainRule
	sets     []*nft.Set // all sets after the plan, in their order
	ops      map[string]*setOps
}

// empty reports whether nothing is done to the table.
func (fp *familyPlan) empty() bool {
	if fp.rebuild || fp.create || fp.program != nil ||
		len(fp.newSets)+len(fp.goneSets)+len(fp.newRules) > 0 {
		return false
	}
	for _, ops := range fp.ops {
		if ops.del.Len+ops.add.Len > 0 {
			return false
		}
	}
	return true
}

// chainRule is a rule to append to a chain.
type chainRule struct {
	chain string
	rule  nft.Rule
}

// setOps are the changes to the elements of one set.
type setOps struct {
	del, add nft.ElemList
}

// planner makes plans. It is pure: what the kernel holds is given to it.
type planner struct {
	table string
	w     *writer
	have  [2]skeleton
	// owning is set if it was parts that were observed: then only those change.
	owning *owning
	// version is the version in the kernel, and first makes the epoch to begin with.
	version version
	first   func() uint32
	// localnet is what the sysctl route_localnet was before something answered at loopback
	// addresses.
	localnet bool
	// drift are elements that must go besides, by family and set.
	drift [2]map[string]*nft.ElemList
	// capacity is how many elements a set is made for that begins with n; 0 lets it grow.
	capacity func(n int) uint32

	c    *servicemodel.ChangeSet
	p    *plan
	need [2]shape // what the changes need; all that is needed when a table is written anew
	miss [2]bool  // the changes need what is not there
}

// plan makes the plan for a change set.
func (pl *planner) plan(c *servicemodel.ChangeSet) *plan {
	pl.c, pl.p = c, &plan{table: pl.table}
	pl.need, pl.miss = [2]shape{}, [2]bool{}
	for i, f := range nft.Families {
		pl.p.families[i] = familyPlan{f: f, next: pl.have[i], ops: map[string]*setOps{}}
	}
	pl.needs()
	for i := range nft.Families {
		pl.family(i)
	}
	pl.forgetMoved()
	pl.p.have = pl.version
	pl.p.next = pl.version.next(pl.p.families[0].create, pl.first,
		pl.version.unswept || pl.p.leavesClients(), pl.owning != nil)
	if pl.owning == nil && pl.version.owners {
		pl.dropIndex()
	}
	pl.p.mark = pl.owning != nil && pl.owning.whole
	return pl.p
}

// dropIndex plans to empty the index of owners: it would no longer be whole.
func (pl *planner) dropIndex() {
	for i := range pl.p.families {
		if fp := &pl.p.families[i]; pl.have[i].exists && !fp.create {
			fp.flushed = ownerSets(fp.f)
		}
	}
}

// needs finds out what the changes need that is not there.
func (pl *planner) needs() {
	for _, fc := range pl.c.Frontends {
		if fc.New != nil {
			pl.needsOf(fc.New)
		}
	}
	for _, pc := range pl.c.Pools {
		if pc.New != nil && pc.Old != nil {
			for _, fe := range shared.Of(pl.c.New).FrontendsOf(pc.New.ID.Service) {
				pl.needsOf(fe)
			}
		}
	}
	for i := range nft.Families {
		pl.miss[i] = !pl.have[i].shape.covers(&pl.need[i])
	}
}

// needsOf adds what a frontend needs.
func (pl *planner) needsOf(fe *servicemodel.Frontend) {
	s := &pl.need[nft.FamilyIndex(fe.Key.Addr)]
	k := kindIndex(fe.Key)
	internal, external := shared.Of(pl.c.New).PoolsOf(fe)
	for e, p := range []*servicemodel.Pool{internal, external} {
		if p != nil {
			s.sizes[k][e] = insert(s.sizes[k][e], slotCount(p))
		}
	}
	if fe.Affinity > 0 {
		s.affinity = insert(s.affinity, uint32(fe.Affinity.Seconds()))
	}
	s.sources = s.sources || fe.Sources != nil
}

// family plans one table.
func (pl *planner) family(i int) {
	have, fp := &pl.have[i], &pl.p.families[i]
	rules := pl.c.New.Rules()
	switch {
	case !have.exists && !pl.wanted(fp.f):
		return
	case !have.exists, have.broken:
		fp.rebuild = have.exists
		pl.write(i, rules)
		return
	}
	fp.sets = setsOf(fp.f, &have.shape)
	if have.stale || pl.c.Rules != nil || pl.miss[i] && !pl.grow(i, rules) {
		pl.reshape(i, rules)
	}
	pl.changes(i)
}

// wanted reports whether a family that has no table needs one: for what is new to it. The table of
// IPv4 has the version, and is there if any is.
func (pl *planner) wanted(f *nft.Family) bool {
	if f == nft.IPv4 && (pl.have[1].exists || pl.wanted(nft.IPv6)) {
		return true
	}
	isNew := func(fc servicemodel.FrontendChange) bool {
		return fc.New != nil && fc.New.Key.Family() == f.Model
	}
	return slices.ContainsFunc(pl.c.Frontends, isNew) ||
		len(f.Own(pl.c.New.Rules().ServiceCIDRs)) > 0
}

// maxSizes bounds the rules that grow adds one after the other.
const maxSizes = 256

// grow adds a set and a rule for each number of slots that is new, and leaves alone those that are
// no longer in use: they cost little, and what had so many slots once soon has them again. It
// reports false if that is not all that is needed.
func (pl *planner) grow(i int, rules servicemodel.Rules) bool {
	have, need, fp := &pl.have[i].shape, &pl.need[i], &pl.p.families[i]
	if !containsAll(have.affinity, need.affinity) || need.sources && !have.sources {
		return false
	}
	next := *have
	count := 0
	for k := range next.sizes {
		for e := range next.sizes[k] {
			next.sizes[k][e] = slices.Clone(next.sizes[k][e])
			for _, n := range need.sizes[k][e] {
				next.sizes[k][e] = insert(next.sizes[k][e], n)
			}
			count += len(next.sizes[k][e])
		}
	}
	if count > maxSizes {
		return false
	}
	oldSets := fp.sets
	fp.sets = setsOf(fp.f, &next)
	fp.newSets = missing(fp.sets, oldSets)
	fp.newRules = newRules(newProgram(fp.f, rules, have), newProgram(fp.f, rules, &next))
	fp.next.shape = next
	return true
}

// newRules lists the rules that new has and old has not.
func newRules(old, new nft.Program) []chainRule {
	had := map[uint64]bool{}
	for _, c := range old {
		for _, h := range c.Hashes() {
			had[h] = true
		}
	}
	var l []chainRule
	for _, c := range new {
		for _, r := range c.Rules {
			if !had[r.Hash()] {
				l = append(l, chainRule{c.Name, r})
			}
		}
	}
	return l
}

// reshape rewrites the rules for what is needed now, all in all; sets that no rule needs any more
// go.
func (pl *planner) reshape(i int, rules servicemodel.Rules) {
	have, fp := &pl.have[i], &pl.p.families[i]
	pl.needsAll(i)
	next := pl.need[i]
	if pl.owning != nil { // it is not known what others need
		next.add(&have.shape)
	}
	oldSets := fp.sets
	fp.sets = setsOf(fp.f, &next)
	fp.newSets = missing(fp.sets, oldSets)
	fp.goneSets = missing(oldSets, fp.sets)
	fp.program = newProgram(fp.f, rules, &next)
	fp.goneChains = goneChains(newProgram(fp.f, pl.c.Old.Rules(), &have.shape), fp.program)
	fp.next.shape, fp.next.stale = next, false
}

// needsAll finds out what all frontends of a family need.
func (pl *planner) needsAll(i int) {
	pl.need[i] = shape{}
	for fe := range shared.Of(pl.c.New).Frontends() {
		if fe.Key.Family() == nft.Families[i].Model {
			pl.needsOf(fe)
		}
	}
}

func missing(from, in []*nft.Set) []*nft.Set {
	var l []*nft.Set
	for _, s := range from {
		if !slices.ContainsFunc(in, func(o *nft.Set) bool { return o.Name == s.Name }) {
			l = append(l, s)
		}
	}
	return l
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

// write plans a table from nothing.
func (pl *planner) write(i int, rules servicemodel.Rules) {
	fp := &pl.p.families[i]
	pl.needsAll(i)
	fp.create = true
	fp.next = skeleton{exists: true, shape: pl.need[i], counts: map[string]int{}}
	fp.sets = setsOf(fp.f, &fp.next.shape)
	fp.newSets = fp.sets
	fp.program = newProgram(fp.f, rules, &fp.next.shape)
	t, add := pl.c.New, pl.sink(i, false)
	for fe := range shared.Of(t).Frontends() {
		if fe.Key.Family() == fp.f.Model {
			pl.added(fe, add)
		}
	}
	pl.allAddresses(i, add)
	pl.w.writeSettings(rules, pl.localnet, add)
	for _, s := range fp.newSets {
		if ops := fp.ops[s.Name]; ops != nil && s.Size == 0 && s.Flags&nft.SetInterval == 0 {
			s.Size = pl.capacity(ops.add.Len)
		}
	}
}

// allAddresses plans the addresses of a table that is written from nothing.
func (pl *planner) allAddresses(i int, add sink) {
	if pl.owning != nil {
		pl.owned(i, nil, add)
		return
	}
	for a := range pl.c.New.ClusterIPs() {
		if nft.FamilyIndex(a) == i {
			pl.address(setClusterIPs, a, add)
		}
	}
	for a := range pl.c.New.Hairpins() {
		if nft.FamilyIndex(a) == i {
			pl.address(setHairpins, a, add)
		}
	}
}

// capacity gives a set that begins with many elements room for four times as many. The kernel then
// makes a hash table that is large enough from the start: filling it takes half the time of one
// that grows, and it is never rehashed, so that it can be read at any time. A set that is full is
// an ENFILE, upon which the table is made anew.
func capacity(n int) uint32 {
	if n < 1000 {
		return 0
	}
	return 1 << bits.Len(uint(4*n-1))
}

// sink collects elements to delete or to add.
func (pl *planner) sink(i int, del bool) sink {
	fp := &pl.p.families[i]
	return func(name string, e nft.Elem) {
		ops := fp.ops[name]
		if ops == nil {
			ops = new(setOps)
			fp.ops[name] = ops
		}
		if del {
			ops.del.Add(e)
		} else {
			ops.add.Add(e)
		}
	}
}

// has reports whether there is a set of that name after the plan.
func (fp *familyPlan) has(set string) bool {
	return slices.ContainsFunc(fp.sets, func(s *nft.Set) bool { return s.Name == set })
}
