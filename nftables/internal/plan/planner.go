package plan

import (
	"slices"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Planner makes plans. It has no connection to the kernel: the caller reports the kernel's state.
type Planner struct {
	Table  string
	Hooks  form.Hooks
	Writer *form.Writer
	Tables []*Table
	// Rules are the node-wide rules of the programs in the tables.
	Rules servicemodel.Rules
	// Owning is set if parts were observed. Then only these parts change.
	Owning *Owning
	// Version is the version in the kernel. FirstEpoch returns the epoch of a new instance.
	Version    form.Version
	FirstEpoch func() uint32
	// Refused says that the kernel refused to replace the contents of a broken table. The next plan
	// deletes the table first.
	Refused bool
	// Complete says that a commit has created all necessary tables since the last observation.
	Complete bool
	// Sysctls are the values of sysctls, with the earlier values to restore.
	Sysctls sysctls.State
	// Capacity returns the size of a set that begins with n elements. 0 lets the set grow.
	Capacity func(n int) uint32
}

// Owning contains the owners that a commit must index after an observation of parts.
type Owning struct {
	// Owners are the owners whose parts change. If Whole is set, everything was read, and the index
	// is rebuilt for all owners.
	Owners []string
	Whole  bool
}

// NewPlanner returns a planner for tables of a name. first returns the epoch of a new instance.
func NewPlanner(name string, first func() uint32) Planner {
	pl := Planner{Table: name, Writer: form.NewWriter(), Capacity: Capacity, FirstEpoch: first}
	for _, f := range nft.Families {
		pl.Tables = append(pl.Tables, &Table{Family: f})
	}
	return pl
}

// Observed records the results of a reading that concern all tables.
func (pl *Planner) Observed(rules servicemodel.Rules, v form.Version) {
	pl.Rules, pl.Version = rules, v
	pl.Owning, pl.Complete = nil, false
}

// ownersAfter returns the owners that the known part of the index covers after a change set.
func (pl *Planner) ownersAfter(c *servicemodel.ChangeSet) []string {
	if pl.Owning.Whole {
		return slices.Collect(c.New.Owners())
	}
	return pl.Owning.Owners
}

// Committed records the state of the kernel after a plan. A plan that only ends a sweep has no
// change set.
func (pl *Planner) Committed(p *Plan) {
	if p.Changes != nil {
		if pl.Owning != nil {
			pl.Owning = &Owning{Owners: pl.ownersAfter(p.Changes)}
		}
		pl.Rules = p.Changes.New.Rules()
		pl.Complete, pl.Refused = true, false
		pl.Sysctls.Committed(p.Sysctls)
	}

	if p.Empty() { // nothing was sent
		return
	}
	for _, t := range p.Tables {
		t.Have.Committed(t)
	}
	pl.Version = p.Next
	for _, t := range pl.Tables {
		if t.Counts == nil {
			continue
		}
		if t.Family == p.Have.Home && p.Have.Epoch != p.Next.Epoch {
			delete(t.Counts, form.VersionName(p.Have.Epoch))
		}
		if t.Family == p.Next.Home {
			t.Counts[form.VersionName(p.Next.Epoch)] = int(p.Next.Number)
		}
	}
}

// Standing returns the first table that exists, or nil.
func (pl *Planner) Standing() *Table {
	for _, t := range pl.Tables {
		if t.Exists {
			return t
		}
	}

	return nil
}

// TablesToMake returns the tables that do not exist and that a change set needs: for new frontends,
// for node-wide rules, or as an anchor. The anchor is created for a state without services: without
// a table, a reading could not distinguish such a state from a missing instance. Parts need no
// anchor, because an instance of parts is removed with its last part.
func (pl *Planner) TablesToMake(c *servicemodel.ChangeSet) (l []*Table) {
	if pl.Complete && c.Rules == nil && len(c.Frontends) == 0 {
		return nil
	}
	rules := c.New.Rules()
	var anchor *Table
	stands := pl.Owning != nil || rules.MasqueradeMark == 0
	type change = servicemodel.Change[servicemodel.Frontend]
	for _, t := range pl.Tables {
		switch {
		case !t.Family.ServedBy(&rules):
		case t.Exists:
			stands = true
		case len(t.Family.Own(rules.ServiceCIDRs)) > 0,
			t.Family == nft.IPv4 && sysctls.Loopback(&rules) != nil,
			slices.ContainsFunc(c.Frontends, func(fc change) bool {
				return fc.New != nil && fc.New.Key.Family() == t.Family.Model
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
