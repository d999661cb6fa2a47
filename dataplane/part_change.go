package dataplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
