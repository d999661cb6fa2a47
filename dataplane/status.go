package dataplane

import (
	"context"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Status is what an engine knows at one moment.
type Status struct {
	// Backend is the backend's name.
	Backend string
	// Running says that [Engine.Run] is under way.
	Running bool
	// Wanted is the newest of what was asked for, and State its state, empty after a Cleanup. Zero
	// means that nothing was.
	Wanted Revision
	State  servicemodel.State
	// Asked is when something was last asked for. Zero means never.
	Asked time.Time
	// Applied is the newest of what was asked for that the kernel came to hold. Zero means none.
	Applied Revision
	// PendingSince is since when something that was asked for is not in the kernel yet. Zero means
	// that all is. Something that is asked for during an apply counts from the end of that.
	PendingSince time.Time
	// Held is the table that the kernel holds. Nil means that this is not known, as before the
	// first apply and after an error.
	Held *servicemodel.Table
	// Refused and Conflicts are those of the last apply that succeeded, see [Result].
	Refused   []Refusal
	Conflicts []servicemodel.Conflict
	// Succeeded is when an apply last succeeded. Zero means never.
	Succeeded time.Time
	// Failed is when something last failed, and Err what ([PhaseError]), be it long ago. Zero means
	// never.
	Failed time.Time
	Err    error
	// Settle is when there is work to do that was left to a later time, in the past if that failed
	// and is to be tried again. Zero means that no work is left.
	Settle time.Time
	// Totals counts what the engine did since it was made.
	Totals Totals
}

// Pending reports whether the newest of what was asked for is not in the kernel yet.
func (s *Status) Pending() bool { return s.Wanted != s.Applied }

// Totals counts what an engine did since it was made.
type Totals struct {
	// Applies counts the applies that succeeded, whether they found something to do or not.
	Applies int `json:"applies"`
	// Failures counts those that failed.
	Failures int `json:"failures"`
	// Repairs counts the applies that put right what others had done ([Result.IsRepair]).
	Repairs int `json:"repairs"`
	// Repaired counts what was put right, see [Result.Repaired].
	Repaired servicemodel.Counts `json:"repaired"`
}

// Status returns what the engine knows, at once, whatever it is doing.
func (e *Engine) Status() Status {
	e.progress.mu.Lock()
	defer e.progress.mu.Unlock()
	s := e.progress.status
	s.Refused, s.Conflicts = slices.Clone(s.Refused), slices.Clone(s.Conflicts)
	return s
}

// succeeded tells of an apply that succeeded.
func (e *Engine) succeeded(ctx context.Context, r *Result) {
	p := &e.progress
	p.update(func(s *Status) {
		s.Applied, p.tried, p.err = r.Revision, r.Revision, nil
		s.Refused, s.Conflicts = slices.Clone(r.Refused), slices.Clone(r.Conflicts)
		s.Succeeded = time.Now()
		s.Totals.Applies++
		if r.IsRepair() {
			s.Totals.Repairs++
			s.Totals.Repaired = s.Totals.Repaired.Plus(r.Repaired)
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

// applyFailed tells of an apply that failed, and returns the error as that of the phase.
func (e *Engine) applyFailed(ctx context.Context, doing string, rev Revision, err error) error {
	err = e.failed(ctx, doing, rev, err)
	e.progress.update(func(s *Status) {
		s.Totals.Failures++
		e.progress.tried, e.progress.err = rev, err
	})
	return err
}

// failed tells of something that failed in the phase under way, and returns the error as that of
// the phase.
func (e *Engine) failed(ctx context.Context, doing string, rev Revision, err error) error {
	err = e.phase.fail(err)
	e.progress.update(func(s *Status) { s.Failed, s.Err = time.Now(), err })
	if e.observers.any() {
		e.phase.enter(e.phase.phase)
		e.observers.emit(ctx, Failed{Doing: doing, Backend: e.backend.Name(),
			Phase: e.phase.phase, Phases: e.phase.elapsed, Revision: rev, Err: err})
	}
	return err
}
