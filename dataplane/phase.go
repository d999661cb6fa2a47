package dataplane

import (
	"strconv"
	"time"
)

// Phase is a step of what an engine does to apply a state.
type Phase int

// The phases, in their order.
const (
	// PhaseLock is waiting for other writers of the instance, see [Locker].
	PhaseLock Phase = iota
	// PhaseResolve makes a table of the state.
	PhaseResolve
	// PhaseObserve asks whether the kernel holds what is known, and reads it if that is not so.
	PhaseObserve
	// PhaseCheck compares, and lets the backend say what it refuses.
	PhaseCheck
	// PhaseCommit plans and writes.
	PhaseCommit
	// PhaseSettle does the work that was left to a later time and is due.
	PhaseSettle
	// PhaseCleanup removes an instance from the kernel.
	PhaseCleanup
	phases
)

var phaseNames = [phases]string{"lock", "resolve", "observe", "check", "commit", "settle",
	"cleanup"}

// String returns "lock", "resolve", "observe", "check", "commit", "settle" or "cleanup".
func (p Phase) String() string {
	if p < 0 || p >= phases {
		return "phase " + strconv.Itoa(int(p))
	}
	return phaseNames[p]
}

// Phases is how long each phase took, by [Phase]. Where something was tried again because others
// were in the way, it is the sum of all tries; the waits between them count for the phase that had
// to be tried again.
type Phases [phases]time.Duration

// stopwatch measures phases. The zero stopwatch measures nothing yet.
type stopwatch struct {
	phase   Phase
	at      time.Time
	elapsed Phases
}

// begin begins to measure anew.
func (s *stopwatch) begin(p Phase) { *s = stopwatch{phase: p, at: time.Now()} }

// enter ends the phase under way and begins the next.
func (s *stopwatch) enter(p Phase) {
	now := time.Now()
	s.elapsed[s.phase] += now.Sub(s.at)
	s.phase, s.at = p, now
}

// fail returns err as that of the phase under way.
func (s *stopwatch) fail(err error) error {
	if err == nil {
		return nil
	}
	return &PhaseError{Phase: s.phase, Err: err}
}

// PhaseError says in which phase an engine failed. Its text is that of Err, which names what was
// being done.
type PhaseError struct {
	Phase Phase
	Err   error
}

// Error returns the text of Err.
func (e *PhaseError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PhaseError) Unwrap() error { return e.Err }
