package nftables

import (
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
)

// table is the backend's knowledge of its table in one family: the last reading, and the effects of
// the commits since. The table may not exist.
type table struct {
	f *nft.Family
	// lacks says what the kernel lacked for the table at the time asked. It is nil if nothing was
	// lacking.
	lacks error
	asked time.Time
	skeleton
	// sets are the sets of the shape, in their order. The first plan makes them.
	sets []*nft.Set
	// drift are the elements without a meaning, by set. The next commit deletes them.
	drift map[string]*nft.ElemList
	// index is the content of the index of owners, after an observation of parts.
	index ownership
	// ahead are the ways that the next plan prepares: see [planner.planAhead].
	ahead waysUsed
}

// newTables returns the tables of an unobserved instance, in the order in which they are written.
func newTables() (l []*table) {
	for _, f := range nft.Families {
		l = append(l, &table{f: f})
	}
	return l
}

// read replaces the knowledge of the table by a reading.
func (t *table) read(r *reading) {
	t.skeleton, t.sets, t.drift, t.index = r.skeleton, nil, r.drift, r.index
}

// skeleton is everything about one table in the kernel except its elements.
type skeleton struct {
	exists bool
	shape  shape
	stale  bool // the rules do not fit the shape and the observed node-wide rules
	broken bool // sets or chains are missing or have another type: the table must be made anew
	// counts is the known number of elements in each set, except sets that rules fill.
	counts map[string]int
	// leads is how many frontends lead to each leaf. It is nil until a plan needs it.
	leads map[string]int
}

// compare compares the last known table (sk) with a check of it (now).
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

// committed updates the table after a plan.
func (t *table) committed(p *tablePlan) {
	t.skeleton, t.sets, t.drift, t.index = p.next, p.sets, nil, p.index
	for leaf, n := range p.leads {
		t.leads[leaf] += n
	}
	if t.counts == nil {
		return
	}
	for _, s := range p.flushed {
		t.counts[s.Name] = 0
	}
	for name, ops := range p.ops {
		t.counts[name] += ops.add.Len - ops.del.Len
	}
	for _, s := range p.goneSets {
		delete(t.counts, s.Name)
	}
	for _, s := range p.newSets {
		if !isAffinityMap(s.Name) {
			t.counts[s.Name] += 0
		}
	}
}
