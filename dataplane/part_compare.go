package dataplane

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// PartReader is a [Backend] that can read what concerns a few owners, in time that does not depend
// on what others hold.
type PartReader interface {
	// ObserveParts reads what owners hold. The table of the observation has the rules of the
	// instance; all of what the owners hold; and of others the frontends, without their pools, that
	// have a key of want, and those with the protocol and port of a node port of the owners or of
	// want, where [Flows] would need them. It may have more of what others hold, but then all.
	// Drift concerns the owners only.
	//
	// Until the next observation, Plan and Commit take change sets of what these owners hold, and
	// of the rules; and Settle does what the commit left. An address that others need, too, is not
	// removed from the kernel with those of the owners.
	ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (*Observation,
		error)
	// Owners lists the owners of frontends in any order, some of them perhaps more than once.
	Owners(ctx context.Context) ([]string, error)
}

// partChange is a change of what some owners hold.
type partChange struct {
	owners    []string
	changes   *servicemodel.ChangeSet
	drift     []string
	conflicts []servicemodel.Conflict
}

// compare compares the state of an owner with what it holds.
func (p *Parts) compare(ctx context.Context, owner string, s servicemodel.State) (*partChange,
	error) {
	p.phase.enter(PhaseResolve)
	if err := s.ValidatePart(owner); err != nil {
		return nil, refusedState{err}
	}
	part, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return nil, refusedState{err}
	}
	o, err := p.observe(ctx, []string{owner}, part)
	if err != nil {
		return nil, err
	}
	p.phase.enter(PhaseCheck)
	base := o.Table
	if held := base.Rules(); held.MasqueradeMark != 0 && !held.Equal(part.Rules()) {
		if base, part, err = p.adopt(ctx, owner, s, base, part); err != nil {
			return nil, err
		}
	}
	next, err := base.WithPart(owner, part)
	if err != nil {
		return nil, refusedState{err}
	}
	c := &partChange{owners: []string{owner}, changes: servicemodel.Diff(o.Table, next),
		drift: o.Drift, conflicts: slices.Collect(part.Conflicts())}
	if err := p.backend.Check(c.changes); err != nil {
		return nil, refusedState{err}
	}
	return c, nil
}

// adopt resolves the state of a part with the settings of the instance. If nobody else holds
// anything, the instance is given those of the part instead. It returns what the part is to be
// merged into.
func (p *Parts) adopt(ctx context.Context, owner string, s servicemodel.State,
	held, part *servicemodel.Table) (base, adopted *servicemodel.Table, err error) {
	node, differs := s.Node().Adopt(held.Rules())
	if differs == nil {
		adopted, err = servicemodel.Resolve(nil, s.WithNode(node))
		return held, adopted, err
	}
	owners, err := p.owners(ctx)
	if err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(owners, func(o string) bool { return o != owner }) {
		return nil, nil, refusedState{differs}
	}
	rules := &servicemodel.RulesChange{Old: held.Rules(), New: part.Rules()}
	return held.Apply(&servicemodel.ChangeSet{Rules: rules}), part, nil
}

func noChange() *partChange { return &partChange{changes: servicemodel.Diff(nil, nil)} }

// without is the change that removes what owners hold.
func (p *Parts) without(ctx context.Context, owners []string) (*partChange, error) {
	if len(owners) == 0 {
		return noChange(), nil
	}
	o, err := p.observe(ctx, owners, nil)
	if err != nil {
		return nil, err
	}
	p.phase.enter(PhaseCheck)
	next := o.Table.WithoutParts(owners...)
	return &partChange{owners: owners, changes: servicemodel.Diff(o.Table, next), drift: o.Drift},
		nil
}

// observe reads what owners hold: only that if the backend can, else everything.
func (p *Parts) observe(ctx context.Context, owners []string, want *servicemodel.Table) (
	*Observation, error) {
	p.phase.enter(PhaseObserve)
	var o *Observation
	var err error
	if r, ok := p.backend.(PartReader); ok {
		o, err = r.ObserveParts(ctx, owners, want)
	} else {
		o, err = p.backend.Observe(ctx, nil)
	}
	if err == nil && o.OtherLayout {
		return nil, fmt.Errorf("%w: %s", ErrOtherLayout, strings.Join(o.Drift, "; "))
	}
	return o, err
}

// owners returns all owners, sorted.
func (p *Parts) owners(ctx context.Context) ([]string, error) {
	if r, ok := p.backend.(PartReader); ok {
		owners, err := r.Owners(ctx)
		slices.Sort(owners)
		return slices.Compact(owners), err
	}
	o, err := p.backend.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	return slices.Collect(o.Table.Owners()), nil
}

// commit writes a change, and repairs what was found.
func (p *Parts) commit(ctx context.Context, c *partChange) (*Result, error) {
	p.phase.enter(PhaseCommit)
	r := &Result{Backend: p.backend.Name(), Owners: c.owners, Counts: c.changes.Counts(),
		Changes: c.changes, Drift: c.drift, Conflicts: c.conflicts, Observed: true}
	if c.changes.Empty() && len(c.drift) == 0 {
		return r, nil
	}
	var err error
	r.Stats, err = p.backend.Commit(ctx, c.changes)
	return r, err
}

// changed notifies the flows of a change. What was read is told together with what is known of
// owners that were changed here before, for flows are looked at again later.
func (p *Parts) changed(s servicemodel.State, c *partChange) {
	if p.flows == nil || len(c.owners) == 0 {
		return
	}
	others, told := p.told.WithoutParts(c.owners...), c.changes
	p.state, p.told = p.state.WithNode(s.Node()), others
	for _, owner := range c.owners {
		part := c.changes.New.Part(owner)
		next, err := p.told.WithPart(owner, part)
		if err != nil { // another program has taken from others what was known of them
			others, next = nil, part
		}
		p.state, p.told = p.state.WithPart(owner, s), next
	}
	if _, ok := p.backend.(PartReader); ok {
		told = servicemodel.Diff(over(others, c.changes.Old), over(others, c.changes.New))
	}
	p.flows.Changed(p.state, told)
}

// over returns the table of what is in t and, beside that, in known.
func over(known, t *servicemodel.Table) *servicemodel.Table {
	c := &servicemodel.ChangeSet{}
	if !t.Rules().Equal(known.Rules()) {
		c.Rules = &servicemodel.RulesChange{Old: known.Rules(), New: t.Rules()}
	}
	for f := range t.Frontends() {
		c.Frontends = append(c.Frontends,
			servicemodel.FrontendChange{Old: known.Frontend(f.Key), New: f})
	}
	for p := range t.Pools() {
		c.Pools = append(c.Pools, servicemodel.PoolChange{Old: known.Pool(p.ID), New: p})
	}
	return known.Apply(c)
}
