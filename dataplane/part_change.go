package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// task is a call of a method of [Parts].
type task struct {
	doing  string
	owners []string // as far as known in advance
	states map[string]servicemodel.State
	// compare reads the kernel, and returns a result with the changes to write.
	compare func() (*Result, error)
}

const doingSettleParts = "settle parts"

// String returns text such as "apply the part of owner".
func (t task) String() string {
	if len(t.owners) == 0 {
		return t.doing
	}
	return t.doing + " of " + strings.Join(t.owners, ", ")
}

// error returns err with the name of the task.
func (t task) error(err error) error { return fmt.Errorf("%s: %w", t, err) }

// change changes the kernel, retries after conflicts, and reports the outcome.
func (p *Parts) change(ctx context.Context, t task) (*Result, error) {
	e := &p.engine
	ctx, err := e.begin(ctx, t.String(), PhaseLock)
	if err != nil {
		return nil, err
	}
	defer e.end()
	var r *Result
	err = e.retry(ctx, "read and commit", e.backend, func() (err error) {
		if r, err = t.compare(); err != nil {
			return err
		}
		if err = p.commit(ctx, r); err != nil {
			return err
		}
		p.changed(t.states, r)
		if s, ok := as[backends.Settler](e.backend); ok {
			e.enter(PhaseSettle)
			r.Settle, r.Unsettled = s.Settle(e.observers.noticing(ctx, p.notified))
		}

		return nil
	})
	if err != nil {
		return nil, p.failed(ctx, t, err)
	}
	e.enter(PhaseSettle)
	if f := e.cfg.Flows; f != nil {
		next, errFlows := f.Settle(e.observers.noticing(ctx, p.notified))
		r.Settle, r.Unsettled = earlier(r.Settle, next), errors.Join(r.Unsettled, errFlows)
	}

	e.enter(PhaseSettle)
	r.Phases, r.Duration = e.elapsed, time.Since(e.callBegan)
	if t.doing != doingSettleParts {
		for _, refused := range r.Refused {
			p.tellRefused(ctx, refused.Owner, refused.Err)
		}
		for w := range r.Warnings.All() {
			e.observers.emit(ctx, Warned{w})
		}
		if len(r.Drift) > 0 {
			e.observers.emit(ctx, Repaired{r})
		}
		e.observers.emit(ctx, Applied{r})
	} else if r.Unsettled == nil {
		e.observers.emit(ctx, Settled{Next: r.Settle, Duration: r.Duration})
	}

	if r.Unsettled != nil {
		if t.doing != doingSettleParts {
			e.elapsed = Phases{} // Applied has reported them
		}
		t.doing = doingSettleParts
		e.tellFailed(ctx, Failed{Doing: t.doing, Owners: t.owners, Err: t.error(r.Unsettled)})
	}

	return r, nil
}

// failed reports a task that failed in the current phase, and returns a [PhaseError].
func (p *Parts) failed(ctx context.Context, t task, err error) error {
	var refused refusedState
	if !errors.As(err, &refused) || len(t.owners) == 0 {
		return p.engine.failed(ctx, Failed{Doing: t.doing, Owners: t.owners, Err: t.error(err)})
	}
	for _, owner := range t.owners {
		p.tellRefused(ctx, owner, refused.error)
	}
	return p.engine.fail(t.error(err))
}

func (p *Parts) tellRefused(ctx context.Context, owner string, err error) {
	p.engine.observers.emit(ctx,
		PartRefused{Backend: p.engine.backend.Name(), Owner: owner, Err: err})
}

// result returns the result for a change that will be committed.
func (p *Parts) result(c *servicemodel.ChangeSet, drift []string, owners ...string) *Result {
	return &Result{Backend: p.engine.backend.Name(), Owners: owners, Counts: c.Counts(), Changes: c,
		Drift: drift, Observed: true}
}

func (p *Parts) noChange() *Result { return p.result(servicemodel.Diff(nil, nil), nil) }

// without returns the change that removes the parts of owners.
func (p *Parts) without(ctx context.Context, owners []string) (*Result, error) {
	if len(owners) == 0 {
		return p.noChange(), nil
	}
	o, err := p.observe(ctx, owners, nil)
	if err != nil {
		return nil, err
	}
	p.engine.enter(PhaseCheck)
	next := o.Table.WithoutParts(owners...)
	r := p.changeTo(o, next, owners...)
	if o.OtherLayout && (next.Len() > 0 || !o.OnlyOwners) { // other owners need it: leave it
		r.Drift = nil
	}
	return r, nil
}

// changeTo returns the change from an observation to next. If no owner has a part in next, the
// change removes the instance, or does nothing without an instance.
func (p *Parts) changeTo(o *backends.Observation, next *servicemodel.Table,
	owners ...string) *Result {
	if next.Len() == 0 && o.OnlyOwners {
		next = nil // the commit removes the instance
	}
	return p.result(servicemodel.Diff(o.Table, next), o.Drift, owners...)
}

// observe reads the parts of owners, or everything if the backend cannot read parts.
func (p *Parts) observe(ctx context.Context, owners []string, want *servicemodel.Table) (
	*backends.Observation, error) {
	p.engine.enter(PhaseObserve)
	if r, ok := as[backends.PartReader](p.engine.backend); ok {
		return r.ObserveParts(ctx, owners, want)
	}
	o, err := p.engine.backend.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	if o.OtherLayout {
		return nil, otherLayout(o)
	}
	o.OnlyOwners = o.Table.WithoutParts(owners...).Len() == 0
	return o, nil
}

func otherLayout(o *backends.Observation) error {
	return fmt.Errorf("%w: %s", backends.ErrOtherLayout, strings.Join(o.Drift, "; "))
}

func (p *Parts) owners(ctx context.Context) ([]string, error) {
	if r, ok := as[backends.PartReader](p.engine.backend); ok {
		owners, err := r.Owners(ctx)
		slices.Sort(owners)
		return slices.Compact(owners), err
	}

	o, err := p.observe(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	return slices.Collect(o.Table.Owners()), nil
}

// commit writes a change, and repairs drift.
func (p *Parts) commit(ctx context.Context, r *Result) (err error) {
	p.engine.enter(PhaseCommit)
	if c := r.Changes; !c.Empty() || len(r.Drift) > 0 {
		r.Stats, err = p.engine.backend.Commit(ctx, c)
	}
	return err
}

// changed notifies the flows of a change. It combines the reading with what it knows about owners
// that this process changed before, because the flows check those owners again later.
func (p *Parts) changed(states map[string]servicemodel.State, r *Result) {
	e, c := &p.engine, r.Changes
	if e.cfg.Flows == nil || len(r.Owners) == 0 {
		return
	}
	parts := map[string]*servicemodel.Table{}
	for _, owner := range r.Owners {
		s := states[owner]
		p.state, parts[owner] = p.state.WithNode(s.Node()).WithPart(owner, s), c.New.Part(owner)
	}

	others, news := p.notified.WithoutParts(r.Owners...), c
	next, err := others.WithParts(parts)
	if err != nil { // notified is outdated: another owner has one of these frontends
		others = nil
		next, _ = others.WithParts(parts)
	}

	p.notified = next
	if _, ok := as[backends.PartReader](e.backend); ok {
		news = servicemodel.Diff(over(others, c.Old), over(others, c.New))
	}
	e.cfg.Flows.Changed(p.state, news)
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
