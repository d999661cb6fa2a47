package dataplane

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// ApplyChanges applies a change set that was made by [Engine.Plan], written as JSON, and read from
// there: perhaps on another machine, after somebody reviewed it. It applies just that or nothing:
// the error is servicemodel.ErrOtherTable if the kernel does not hold what it begins from, and
// another one if it was edited.
//
// An engine does not know the state that the changes were made of. So it cannot tell stale flows,
// which stay; nothing is wanted any more until the next Set or Apply, as after [Engine.Cleanup].
func (e *Engine) ApplyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	defer e.give()
	start := time.Now()
	rev := e.progress.ask(servicemodel.State{}, false)
	e.phase.begin(PhaseLock)
	r, err := e.applyChanges(ctx, c)
	e.held, e.notified, e.applied = newHeld(e.backend), nil, false
	if err != nil {
		return nil, e.applyFailed(ctx, "apply changes", rev, err)
	}
	e.phase.enter(PhaseSettle)
	r.Revision, r.Phases, r.Duration = rev, e.phase.elapsed, time.Since(start)
	e.succeeded(ctx, r)
	return r, nil
}

// applyChanges reads the kernel and commits c to it, while other writers of the instance wait.
func (e *Engine) applyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	unlock, err := lock(ctx, e.backend)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *Result
	err = e.observers.retry(ctx, "apply changes", func() error {
		e.phase.enter(PhaseObserve)
		if err := e.observe(ctx, nil); err != nil {
			return err
		}
		e.phase.enter(PhaseCheck)
		on, err := c.On(e.kernel)
		if err != nil {
			return err
		}
		if err := e.backend.Check(on); err != nil {
			return err
		}
		r = &Result{Backend: e.backend.Name(), Counts: on.Counts(), Changes: on, Observed: true,
			Drift: slices.Clone(e.drift)}
		if on.Empty() && len(e.drift) == 0 {
			return nil
		}
		e.phase.enter(PhaseCommit)
		e.logPlan(ctx, on)
		r.Stats, err = e.backend.Commit(ctx, on)
		return err
	})
	return r, err
}
