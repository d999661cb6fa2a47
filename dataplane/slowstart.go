package dataplane

import (
	"context"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// atPresent returns the table that the kernel is to hold now, of a resolved table: endpoints with a
// slow start have a part of their weight. Without slow starts it is the table itself. It goes on
// from the table of the last apply, or from the kernel's after a start or an error.
func (e *Engine) atPresent(t *servicemodel.Table) *servicemodel.Table {
	if e.resolved != nil {
		return nocopy.Of(t).At(time.Now, e.resolved)
	}
	return nocopy.Of(t).At(time.Now, e.kernel)
}

// untilStep returns the time until the next step of slow starts. 0 means that nothing grows.
func (e *Engine) untilStep() time.Duration {
	if e.resolved == nil {
		return 0
	}
	at := nocopy.Of(e.resolved).NextStep()
	if at.IsZero() {
		return 0
	}
	if wait := time.Until(at); wait > 0 {
		return wait
	}
	return lateStep
}

// lateStep is the time until another try if a newer state waits to be applied. That apply takes the
// step, too.
const lateStep = time.Second

// stepDue returns the state whose next step is due, and its revision. A state that is not applied
// yet is not applied for the sake of a step.
func (e *Engine) stepDue() (s servicemodel.State, rev Revision, due bool) {
	if e.resolved == nil {
		return s, 0, false
	}
	if at := nocopy.Of(e.resolved).NextStep(); at.IsZero() || time.Now().Before(at) {
		return s, 0, false
	}
	if _, _, pending := e.progress.todo(false); pending {
		return s, 0, false
	}
	return e.progress.todo(true)
}

// step applies the state again, at a later time. A step that failed is retried like other later
// work.
func (e *Engine) step(ctx context.Context, s servicemodel.State, rev Revision) (time.Duration,
	error) {
	r, err := e.applyRevision(ctx, s, rev, true, nil)
	if r == nil {
		e.settled(0, err)
		return 0, fmt.Errorf("%w: %w", ErrUnsettled, err)
	}
	return r.Settle, err
}
