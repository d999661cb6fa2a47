package plan

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Table is what the backend knows about its table in one family: the last reading, and the effects
// of the commits since then. The table may not exist.
type Table struct {
	Family *nft.Family
	form.Skeleton
	// sets are the sets of the shape, in their order. The first plan fills them in.
	sets []*nft.Set
	// Drift are the elements without a meaning, by set. The next commit deletes them.
	Drift map[string]*nft.ElemList
	// Index is the content of the index of owners, after an observation of parts.
	Index form.Ownership
	// ahead are the ways that the next plan prepares: see [Planner.PlanAhead].
	ahead form.Feature
}

// Observed updates the table after a reading.
func (t *Table) Observed(sk form.Skeleton, drift map[string]*nft.ElemList, index form.Ownership) {
	t.Skeleton, t.sets, t.Drift, t.Index = sk, nil, drift, index
}

// Plan is the content of a commit: the changes to each table, in their order, and the version.
type Plan struct {
	Table   string
	Changes *servicemodel.ChangeSet
	Tables  []*TablePlan
	// Have is the version that the plan is for. Next is the version after the plan.
	Have, Next form.Version
	// Forget says which clients are forgotten after the commit. leavesClients says that the maps
	// may still have such clients.
	Forget        []Forget
	leavesClients bool
	// Sysctls are the sysctls that the commit sets and restores in addition to the tables.
	Sysctls sysctls.Change
	// Mark commits a version with different marks even if nothing else changes.
	Mark bool
	// anew says that the plan deletes the table that has the version.
	anew bool
}

// spares reports whether the plan keeps the clients in a table whose other contents are replaced.
func (p *Plan) spares() bool {
	return slices.ContainsFunc(p.Tables, func(t *TablePlan) bool { return len(t.spare) > 0 })
}

// Empty reports whether there is nothing to send.
func (p *Plan) Empty() bool {
	return !p.Mark && !slices.ContainsFunc(p.Tables, func(t *TablePlan) bool { return !t.Empty() })
}

// TablePlan is the plan for one table. It is written in this order: the table, its sets, the chains
// with their rules, the elements to delete and to add, and the sets to delete.
type TablePlan struct {
	Family *nft.Family
	Hooks  *form.Hooks // the user's chains keep their rules
	// Have is the current table, and next its skeleton after the plan.
	Have *Table
	next form.Skeleton
	// need is the shape that the changes need, or the shape of all frontends if the program is
	// written.
	need form.Shape
	// rebuild deletes the table first. Renew deletes the contents of the table, except user-defined
	// chains and remembered clients. spare are the affinity maps that are kept.
	rebuild bool
	Renew   bool
	spare   map[string]bool
	// Create creates the table and its sets. Otherwise NewSets are added to the existing sets.
	Create   bool
	NewSets  []*nft.Set
	goneSets []*nft.Set
	// Program, if not nil, replaces the chains and rules.
	Program    nft.Program
	goneChains []string
	// flushed sets lose all their elements before elements are added.
	flushed []*nft.Set
	Sets    []*nft.Set // all sets after the plan, in their order
	Ops     map[string]*SetOps
	// del and add put the deletion and the addition of an element into the plan.
	del, add form.Sink
	// leads is the change of the number of frontends that refer to each leaf.
	leads map[string]int
	// index is the content of the index of owners after the plan.
	index form.Ownership
}

// SetOps are the changes to the elements of one set.
type SetOps struct {
	del, Add nft.ElemList
}

// Empty reports whether the plan does not change the table.
func (t *TablePlan) Empty() bool {
	// sets are added and removed only with the rules of a program
	return !t.rebuild && !t.Create && t.Program == nil && len(t.Ops) == 0
}

// newTablePlan returns a plan that does not change the table.
func newTablePlan(h *form.Hooks, have *Table) *TablePlan {
	t := &TablePlan{Family: have.Family, Hooks: h, Have: have, next: have.Skeleton}
	t.need.Uses = have.ahead
	t.del = func(set string, e nft.Elem) {
		if t.OpsOf(set).del.Add(e); e.Goto {
			t.lead(e, -1)
		}
	}

	t.add = func(set string, e nft.Elem) {
		if t.OpsOf(set).Add.Add(e); e.Goto {
			t.lead(e, 1)
		}
	}

	return t
}

// lead counts an added (1) or removed (-1) element that refers to a leaf.
func (t *TablePlan) lead(e nft.Elem, n int) {
	if t.leads == nil {
		t.leads = map[string]int{}
	}
	t.leads[string(e.Data)] += n
}

// OpsOf returns the changes to the elements of a set.
func (t *TablePlan) OpsOf(set string) *SetOps {
	ops := t.Ops[set]
	if ops == nil {
		ops = new(SetOps)
		if t.Ops == nil {
			t.Ops = map[string]*SetOps{}
		}
		t.Ops[set] = ops
	}

	return ops
}

// differ compares elements before and after the change, and does not write equal elements.
func (t *TablePlan) differ(was, is func(to form.Sink)) {
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

// leadsTo reports whether a frontend refers to a leaf after the plan.
func (t *TablePlan) leadsTo(name string) bool { return t.next.Leads[name]+t.leads[name] > 0 }

// needAll computes the shape that all frontends of the table need.
func (t *TablePlan) needAll(of *servicemodel.Table) {
	t.need = form.Shape{}
	for fe := range form.FrontendsOf(of, t.Family) {
		t.need.AddFrontend(of, fe)
	}
}

// size sets the sizes of the sets in a table that is written completely.
func (t *TablePlan) size(capacity func(n int) uint32) {
	for _, s := range t.NewSets {
		if ops := t.Ops[s.Name]; ops != nil && s.Size == 0 && s.Flags&nft.SetInterval == 0 {
			n := ops.Add.Len
			if strings.HasSuffix(s.Name, form.WayNames[form.ByMaglev]+form.SetEndpoints) ||
				n >= Growing && strings.HasSuffix(s.Name,
					form.WayNames[form.ByHash]+form.SetEndpoints) {
				n = max(n, firstMaglev)
			}

			s.Size = capacity(n)
		}
	}
}

// Committed updates the table after a plan.
func (t *Table) Committed(p *TablePlan) {
	t.Skeleton, t.sets, t.Drift, t.Index = p.next, p.Sets, nil, p.index
	for leaf, n := range p.leads {
		t.Leads[leaf] += n
	}
	if t.Counts == nil {
		return
	}
	for _, s := range p.flushed {
		t.Counts[s.Name] = 0
	}
	for name, ops := range p.Ops {
		t.Counts[name] += ops.Add.Len - ops.del.Len
	}
	for _, s := range p.goneSets {
		delete(t.Counts, s.Name)
	}
	for _, s := range p.NewSets {
		if !form.IsAffinityMap(s.Name) {
			t.Counts[s.Name] += 0
		}
	}
}
