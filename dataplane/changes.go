package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// ApplyChanges applies a change set that [Engine.Plan] made and that was stored as JSON, perhaps on
// another machine and after a review. It applies exactly these changes or nothing. The error is
// servicemodel.ErrOtherTable if the kernel does not hold the table that the changes begin from, and
// another one if the change set was edited.
//
// The engine does not know the state that the changes were made of, so it cannot find stale flows,
// and these stay. Once the kernel has the changes, no state is wanted until the next Set or Apply,
// as after [Engine.Cleanup]. Changes that fail leave the wanted state as it was.
func (e *Engine) ApplyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	if c == nil {
		return nil, errors.New("apply changes: there are none")
	}
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	defer e.give()
	start := time.Now()
	e.phase.begin(ctx, "apply changes", PhaseLock)
	r, err := e.applyChanges(ctx, c)
	if err != nil {
		e.update(func(s *Status) { s.Totals.Failures++ })
		return nil, e.failed(ctx, "apply changes", 0, err)
	}
	e.held, e.notified = newHeld(e.backend), nil
	r.Revision = e.progress.ask(servicemodel.State{}, false)
	e.phase.enter(PhaseSettle)
	r.Phases, r.Duration = e.phase.elapsed, time.Since(start)
	e.succeeded(ctx, r)
	return r, nil
}

// applyChanges reads the kernel and commits c, while other writers of the instance wait.
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
		on, err := c.On(e.read)
		if err != nil {
			return err
		}
		if err := e.backend.Check(on); err != nil {
			return err
		}
		r = &Result{Backend: e.backend.Name(), Counts: on.Counts(), Changes: on, Observed: true,
			Drift: slices.Clone(e.drift)}
		if on.Empty() && len(on.Health) == 0 && len(e.drift) == 0 {
			return nil
		}
		if err := e.approve(ctx, r, on); err != nil {
			return err
		}
		e.phase.enter(PhaseCommit)
		e.logPlan(ctx, on)
		if r.Stats, err = e.backend.Commit(ctx, on); err != nil {
			e.failedCommit(err)
		}
		return err
	})
	return r, err
}
