package dataplane

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// ApplyChanges applies a change set from [Engine.Plan], perhaps stored as JSON, on another machine
// and after a review. It applies exactly these changes or nothing. The error is
// servicemodel.ErrOtherTable if the table in the kernel is not the one from which the changes
// start. An edited change set is an error, too.
//
// The engine does not know the state from which the changes were planned. So it cannot find stale
// flows, and does not delete them. After ApplyChanges, no state is desired until the next Set or
// Apply, as after [Engine.Cleanup]. If the changes fail, the desired state does not change.
func (e *Engine) ApplyChanges(ctx context.Context, c *servicemodel.ChangeSet) (*Result, error) {
	if c == nil {
		return nil, errors.New("apply changes: there are none")
	}
	ctx, err := e.begin(ctx, "apply changes", PhaseLock)
	if err != nil {
		return nil, err
	}
	defer e.end()
	var r *Result
	err = e.retry(ctx, "apply changes", e.backend, func() error {
		e.enter(PhaseObserve)
		if err := e.observe(ctx, nil); err != nil {
			return err
		}
		e.enter(PhaseCheck)
		on, err := c.On(e.known.lastRead)
		if err != nil {
			return err
		}
		if err := e.backend.Check(on); err != nil {
			return err
		}
		r = &Result{Backend: e.backend.Name(), Counts: on.Counts(), Changes: on, Observed: true,
			stored: true}
		return e.commit(ctx, r, on)
	})
	if err != nil {
		e.update(func(s *Status) { s.Totals.Failures++ })
		return nil, e.failed(ctx, Failed{Doing: "apply changes", Err: err})
	}

	e.enter(PhaseSettle)
	r.Settle, r.Unsettled = e.settle(ctx)
	e.forget()
	r.Revision = e.progress.ask(servicemodel.State{}, false)
	e.succeeded(ctx, r)
	return r, nil
}

// fromReading makes the changes of a result start from a reading of the kernel. The engine may know
// pools that the kernel cannot store, but another process does not.
func (e *Engine) fromReading(ctx context.Context, r *Result) error {
	if _, ok := as[backends.OmitsPools](e.backend); !ok {
		return nil
	}
	if !r.Observed {
		e.enter(PhaseObserve)
		if err := e.observe(ctx, nil); err != nil {
			return err
		}
	}

	last := e.known.lastRead
	r.Changes = servicemodel.Diff(last, r.Changes.New.Arrange(last))
	e.countRepairs(r)
	return nil
}
