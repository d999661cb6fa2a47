package dataplane

import (
	"context"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Status is an engine's knowledge at one moment.
type Status struct {
	// Backend is the backend's name.
	Backend string
	// Running says that [Engine.Run] is under way.
	Running bool
	// Wanted is the newest request, and State its state, which is empty after a Cleanup. Zero means
	// no request.
	Wanted Revision
	State  servicemodel.State
	// Asked is the time of the last request. Zero means never.
	Asked time.Time
	// Applied is the newest request that the kernel has come to hold. Zero means none.
	Applied Revision
	// PendingSince is the time since which the newest request waits for the kernel. Zero means that
	// the kernel has it. A request during an apply counts from the end of that apply.
	PendingSince time.Time
	// Held is the table that the kernel holds. Nil means that it is unknown, as before the first
	// apply and after an error.
	Held *servicemodel.Table
	// Refused and Conflicts come from the last successful apply, see [Result].
	Refused   []Refusal
	Conflicts []servicemodel.Conflict
	// Succeeded is the time of the last successful apply. Zero means never.
	Succeeded time.Time
	// Failed is the time of the last failure, even long ago, and Err its error ([PhaseError]). Zero
	// means never.
	Failed time.Time
	Err    error
	// Settle is the time of the next later work. It is in the past if that work failed and is to be
	// retried. Zero means that no work is left.
	Settle time.Time
	// Totals counts the engine's work since it was made.
	Totals Totals
}

// Pending reports whether the newest request is not in the kernel yet.
func (s Status) Pending() bool { return s.Wanted != s.Applied }

// Totals counts the work of an engine since it was made.
type Totals struct {
	// Applies counts successful applies, including those that found nothing to do.
	Applies int `json:"applies"`
	// Failures counts failed applies.
	Failures int `json:"failures"`
	// Repairs counts the applies that undid changes by others ([Result.IsRepair]).
	Repairs int `json:"repairs"`
	// Repaired counts the repaired objects, see [Result.Repaired].
	Repaired servicemodel.Counts `json:"repaired"`
}

// Status returns the engine's knowledge at once, even during other calls.
func (e *Engine) Status() Status {
	e.progress.mu.Lock()
	defer e.progress.mu.Unlock()
	s := e.progress.status
	s.Refused, s.Conflicts = slices.Clone(s.Refused), slices.Clone(s.Conflicts)
	return s
}

// succeeded reports a successful apply.
func (e *Engine) succeeded(ctx context.Context, r *Result) {
	p := &e.progress
	e.update(func(s *Status) {
		s.Applied, p.tried, p.err = r.Revision, r.Revision, nil
		s.Refused, s.Conflicts = slices.Clone(r.Refused), slices.Clone(r.Conflicts)
		s.Succeeded = time.Now()
		s.Totals.Applies++
		if r.IsRepair() {
			s.Totals.Repairs++
			s.Totals.Repaired = sum(s.Totals.Repaired, r.Repaired)
		}
	})
	refused, conflicts := e.refused, e.conflicts
	e.refused, e.conflicts = r.Refused, r.Conflicts
	if !e.observers.any() {
		return
	}
	for _, f := range r.Refused {
		i, found := slices.BinarySearchFunc(refused, f, compareRefusals)
		if !found || refused[i].Err.Error() != f.Err.Error() {
			e.observers.emit(ctx, Refused{Backend: r.Backend, Refusal: f})
		}
	}
	for _, c := range r.Conflicts {
		if !slices.Contains(conflicts, c) {
			e.observers.emit(ctx, ClaimConflict{c})
		}
	}
	if len(r.Drift) > 0 || r.IsRepair() {
		e.observers.emit(ctx, Repaired{r})
	}
	e.observers.emit(ctx, Applied{r})
}

// applyFailed reports a failed apply, and returns a [PhaseError].
func (e *Engine) applyFailed(ctx context.Context, doing string, rev Revision, err error) error {
	err = e.failed(ctx, doing, rev, err)
	e.update(func(s *Status) {
		s.Totals.Failures++
		e.progress.tried, e.progress.err = rev, err
	})
	return err
}

// failed reports a failure in the current phase, and returns a [PhaseError].
func (e *Engine) failed(ctx context.Context, doing string, rev Revision, err error) error {
	err = e.phase.fail(err)
	e.update(func(s *Status) { s.Failed, s.Err = time.Now(), err })
	if e.observers.any() {
		e.phase.enter(e.phase.phase)
		e.observers.emit(ctx, Failed{Doing: doing, Backend: e.backend.Name(),
			Phase: e.phase.phase, Phases: e.phase.elapsed, Revision: rev, Err: err})
	}
	return err
}
