package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// task is a call of a method of [Parts].
type task struct {
	doing  string
	owners []string // as far as they are known in advance
	state  servicemodel.State
	// compare reads the kernel, and returns the change to make.
	compare func() (*partChange, error)
}

const doingSettleParts = "settle parts"

// error returns err with the name of the task.
func (t *task) error(err error) error {
	if len(t.owners) == 0 {
		return fmt.Errorf("%s: %w", t.doing, err)
	}
	return fmt.Errorf("%s of %s: %w", t.doing, strings.Join(t.owners, ", "), err)
}

// change makes a change to the kernel, retries after conflicts, and reports the outcome.
func (p *Parts) change(ctx context.Context, t task) (*Result, error) {
	start := time.Now()
	if err := p.turn.take(ctx); err != nil {
		return nil, t.error(err)
	}
	defer p.turn.give()
	p.phase.restart(PhaseLock)
	r, err := p.changeInTurn(ctx, t)
	if r == nil {
		return nil, p.failed(ctx, t, err)
	}
	if p.flows != nil {
		next, errFlows := p.flows.Settle(p.observers.emitting(ctx, p.told))
		r.Settle, err = earlier(r.Settle, next), errors.Join(err, errFlows)
	}
	p.phase.enter(PhaseSettle)
	r.Phases, r.Duration = p.phase.elapsed, time.Since(start)
	p.succeeded(ctx, t, r, err)
	if err != nil {
		if t.doing != doingSettleParts { // Applied has reported the times
			p.phase.restart(PhaseSettle)
		}
		err = p.failed(ctx, t, fmt.Errorf("%w: %w", ErrUnsettled, err))
	}
	return r, err
}

// changeInTurn makes a change while other programs wait for their turn. If there is a result, later
// work failed with the error.
func (p *Parts) changeInTurn(ctx context.Context, t task) (r *Result, err error) {
	unlock, err := lock(ctx, p.backend)
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = p.observers.retry(ctx, "read and commit", func() error {
		c, err := t.compare()
		if err != nil {
			return err
		}
		r, err = p.commit(ctx, c)
		if err == nil {
			p.changed(t.state, c)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p.phase.enter(PhaseSettle)
	if b, ok := as[Settler](p.backend); ok {
		r.Settle, err = b.Settle(p.observers.emitting(ctx, p.told))
	}
	return r, err
}

// earlier returns the shorter of two waits. 0 means no wait.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// succeeded reports a task that succeeded. unsettled is the error of later work, if that failed.
func (p *Parts) succeeded(ctx context.Context, t task, r *Result, unsettled error) {
	if !p.observers.any() {
		return
	}
	if t.doing == doingSettleParts {
		if unsettled == nil {
			p.observers.emit(ctx, Settled{Next: r.Settle, Duration: r.Duration})
		}
		return
	}
	for _, c := range r.Conflicts {
		p.observers.emit(ctx, ClaimConflict{c})
	}
	if len(r.Drift) > 0 {
		p.observers.emit(ctx, Repaired{r})
	}
	p.observers.emit(ctx, Applied{r})
}

// failed reports a task that failed in the current phase, and returns a [PhaseError].
func (p *Parts) failed(ctx context.Context, t task, err error) error {
	var refused refusedState
	isRefused := errors.As(err, &refused)
	err = p.phase.fail(t.error(err))
	if !p.observers.any() {
		return err
	}
	if isRefused && len(t.owners) > 0 { // the task is Apply, which has one owner
		p.observers.emit(ctx, PartRefused{Backend: p.backend.Name(), Owner: t.owners[0],
			Err: refused.error})
		return err
	}
	p.phase.enter(p.phase.phase)
	p.observers.emit(ctx, Failed{Doing: t.doing, Owners: t.owners, Backend: p.backend.Name(),
		Phase: p.phase.phase, Phases: p.phase.elapsed, Err: err})
	return err
}

// PartReader is a [Backend] that can read the objects of a few owners, in time that does not depend
// on the parts of others.
type PartReader interface {
	// ObserveParts reads the parts of owners, and finds out whether others hold anything
	// ([Observation.Alone]). If owners have nothing and are to have something, Alone may be false
	// in any case. The table of the observation has the rules of the
	// instance and everything that the owners hold. From other owners it has, without their pools,
	// the frontends with a key of want, and the frontends with the protocol and port of a node port
	// of the owners or of want, if [Flows] would need them. It may have more of the others' parts,
	// but then all of them. Drift concerns only the owners.
	//
	// If another version of kernlb made the instance ([Observation.OtherLayout]), the table has the
	// frontends of all owners, without their pools, and no rules. Commit then accepts two kinds of
	// change sets. The first removes everything that the owners hold. The second leads to a whole
	// table and replaces the instance; it requires that no other owner holds anything. If the
	// backend cannot tell which frontends there are, the error is [ErrOtherLayout].
	//
	// Until the next observation, Plan and Commit accept change sets for these owners and for the
	// rules. A change set that leads to an empty table without rules removes the instance, in one
	// transaction that fails if another writer has committed meanwhile. Settle does the work that
	// the commit left. When an owner's address goes, Commit keeps it in the kernel if others also
	// need it.
	ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (*Observation,
		error)
	// Owners lists the owners of frontends in any order, possibly with repetitions.
	Owners(ctx context.Context) ([]string, error)
}

// partChange is a change of the parts of some owners.
type partChange struct {
	owners    []string
	changes   *servicemodel.ChangeSet
	drift     []string
	last      bool // an instance of another layout has no other parts left: remove it
	conflicts []servicemodel.Conflict
}

// compare compares the state of an owner with its part.
func (p *Parts) compare(ctx context.Context, owner string, s servicemodel.State) (*partChange,
	error) {
	p.phase.enter(PhaseResolve)
	if err := nocopy.Of(s).ValidatePart(owner); err != nil {
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
	if o.OtherLayout {
		if base = nocopy.Of(base).WithoutParts(owner); base.Len() > 0 {
			return nil, otherLayout(o)
		}
	}
	if held := base.Rules(); held.MasqueradeMark != 0 && !held.Equal(part.Rules()) {
		if base, part, err = p.adopt(ctx, owner, s, base, part); err != nil {
			return nil, err
		}
	}
	next, err := nocopy.Of(base).WithPart(owner, part)
	if err != nil {
		return nil, refusedState{err}
	}
	c := p.changeTo(o, next, owner)
	c.conflicts = slices.Collect(part.Conflicts())
	if err := p.backend.Check(c.changes); err != nil {
		return nil, refusedState{err}
	}
	return c, nil
}

// adopt resolves the state of a part with the settings of the instance. If no other owner holds
// anything, the instance gets the settings of the part instead. base is the table into which the
// part is to be merged.
func (p *Parts) adopt(ctx context.Context, owner string, s servicemodel.State,
	held, part *servicemodel.Table) (base, adopted *servicemodel.Table, err error) {
	node, differs := nocopy.Of(s).Adopt(held.Rules())
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
	rules := part.Rules()
	return held.Apply(&servicemodel.ChangeSet{
		Rules: &servicemodel.Change[servicemodel.Rules]{New: &rules}}), part, nil
}

func noChange() *partChange { return &partChange{changes: servicemodel.Diff(nil, nil)} }

// without returns the change that removes the parts of owners.
func (p *Parts) without(ctx context.Context, owners []string) (*partChange, error) {
	if len(owners) == 0 {
		return noChange(), nil
	}
	o, err := p.observe(ctx, owners, nil)
	if err != nil {
		return nil, err
	}
	p.phase.enter(PhaseCheck)
	c := p.changeTo(o, nocopy.Of(o.Table).WithoutParts(owners...), owners...)
	if o.OtherLayout { // others need the instance: leave it as it is
		c.drift = nil
	}
	return c, nil
}

// changeTo returns the change from an observation to next. If no owner holds anything then, the
// change removes the instance.
func (p *Parts) changeTo(o *Observation, next *servicemodel.Table, owners ...string) *partChange {
	c := &partChange{owners: owners, drift: o.Drift}
	stands := o.Table.Len() > 0 || o.Table.Rules().MasqueradeMark != 0 || len(o.Drift) > 0
	c.last = next.Len() == 0 && o.Alone && stands
	if _, ok := as[PartReader](p.backend); ok && c.last {
		next = nil
	}
	c.changes = servicemodel.Diff(o.Table, next)
	return c
}

// observe reads the parts of owners, or everything if the backend cannot read parts.
func (p *Parts) observe(ctx context.Context, owners []string, want *servicemodel.Table) (
	*Observation, error) {
	p.phase.enter(PhaseObserve)
	if r, ok := as[PartReader](p.backend); ok {
		return r.ObserveParts(ctx, owners, want)
	}
	o, err := p.backend.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	if o.OtherLayout {
		return nil, otherLayout(o)
	}
	o.Alone = nocopy.Of(o.Table).WithoutParts(owners...).Len() == 0
	return o, nil
}

func otherLayout(o *Observation) error {
	return fmt.Errorf("%w: %s", ErrOtherLayout, strings.Join(o.Drift, "; "))
}

// owners returns all owners, sorted.
func (p *Parts) owners(ctx context.Context) ([]string, error) {
	if r, ok := as[PartReader](p.backend); ok {
		owners, err := r.Owners(ctx)
		slices.Sort(owners)
		return slices.Compact(owners), err
	}
	o, err := p.backend.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	return slices.Collect(nocopy.Of(o.Table).Owners()), nil
}

// commit writes a change, and repairs drift.
func (p *Parts) commit(ctx context.Context, c *partChange) (*Result, error) {
	p.phase.enter(PhaseCommit)
	r := &Result{Backend: p.backend.Name(), Owners: c.owners, Counts: c.changes.Counts(),
		Changes: c.changes, Drift: c.drift, Conflicts: c.conflicts, Observed: true}
	if c.changes.Empty() && len(c.drift) == 0 && !c.last {
		return r, nil
	}
	var err error
	if _, ok := as[PartReader](p.backend); c.last && !ok {
		r.Stats, err = p.backend.Cleanup(ctx)
	} else {
		r.Stats, err = p.backend.Commit(ctx, c.changes)
	}
	return r, err
}

// changed notifies the flows of a change. It combines the reading with the earlier knowledge of
// owners that this process changed before, because the flows check them again later.
func (p *Parts) changed(s servicemodel.State, c *partChange) {
	if p.flows == nil || len(c.owners) == 0 {
		return
	}
	others, told := nocopy.Of(p.told).WithoutParts(c.owners...), c.changes
	p.state, p.told = p.state.WithNode(s.Node()), others
	for _, owner := range c.owners {
		part := nocopy.Of(c.changes.New).Part(owner)
		next, err := nocopy.Of(p.told).WithPart(owner, part)
		if err != nil { // told is outdated: another owner has one of these frontends
			others, next = nil, part
		}
		p.state, p.told = nocopy.Of(p.state).WithPart(owner, s), next
	}
	if _, ok := as[PartReader](p.backend); ok {
		told = servicemodel.Diff(over(others, c.changes.Old), over(others, c.changes.New))
	}
	p.flows.Changed(p.state, told)
}

// over returns known with the objects of t added or replaced.
func over(known, t *servicemodel.Table) *servicemodel.Table {
	c := &servicemodel.ChangeSet{}
	if old, new := known.Rules(), t.Rules(); !new.Equal(old) {
		c.Rules = &servicemodel.Change[servicemodel.Rules]{Old: &old, New: &new}
	}
	for f := range t.Frontends() {
		c.Frontends = append(c.Frontends,
			servicemodel.Change[servicemodel.Frontend]{Old: known.Frontend(f.Key), New: f})
	}
	for p := range t.Pools() {
		c.Pools = append(c.Pools,
			servicemodel.Change[servicemodel.Pool]{Old: known.Pool(p.ID), New: p})
	}
	return known.Apply(c)
}
