package dataplane

import (
	"context"
	"strconv"
	"time"
)

// Phase is a step of an engine's work on a call.
type Phase int

// The phases, in their order.
const (
	// PhaseLock waits for other writers of the instance, see [Locker].
	PhaseLock Phase = iota
	// PhaseResolve makes a table of the state.
	PhaseResolve
	// PhaseObserve asks whether the kernel still holds the known contents, and reads it if not.
	PhaseObserve
	// PhaseCheck compares, asks the backend for refusals, and calls [Config.Approve].
	PhaseCheck
	// PhaseCommit plans and writes.
	PhaseCommit
	// PhaseSettle does earlier work that is due.
	PhaseSettle
	// PhaseCleanup removes an instance from the kernel.
	PhaseCleanup
)

var phaseNames = [...]string{"lock", "resolve", "observe", "check", "commit", "settle",
	"cleanup"}

// String returns "lock", "resolve", "observe", "check", "commit", "settle" or "cleanup".
func (p Phase) String() string {
	if p < 0 || p > PhaseCleanup {
		return "phase " + strconv.Itoa(int(p))
	}
	return phaseNames[p]
}

// Phases is the time of each phase, by [Phase]. After conflicts, it is the sum of all tries. The
// waits between tries count for the phase that was repeated.
type Phases [PhaseCleanup + 1]time.Duration

// stopwatch measures the phases of a call, and calls [Config.Span] for the call and for each of its
// phases. The zero stopwatch measures nothing yet.
type stopwatch struct {
	phase   Phase
	at      time.Time
	elapsed Phases

	span      func(context.Context, string) (context.Context, func(error)) // nil means no spans
	ctx       context.Context                                              // of the call's span
	endCall   func(error)                                                  // nil outside of calls
	endPhase  func(error)
	callError error
}

// begin starts the measurement of a call.
func (s *stopwatch) begin(ctx context.Context, doing string, p Phase) {
	if s.span != nil {
		s.ctx, s.endCall = s.span(ctx, doing)
		_, s.endPhase = s.span(s.ctx, p.String())
	}
	s.restart(p)
}

// restart starts the measurement again, within a call.
func (s *stopwatch) restart(p Phase) { s.phase, s.at, s.elapsed = p, time.Now(), Phases{} }

// enter ends the current phase and begins the next.
func (s *stopwatch) enter(p Phase) {
	if s.endCall != nil && p != s.phase {
		s.endPhase(nil)
		_, s.endPhase = s.span(s.ctx, p.String())
	}
	now := time.Now()
	s.elapsed[s.phase] += now.Sub(s.at)
	s.phase, s.at = p, now
}

// fail returns err as a [PhaseError] of the current phase.
func (s *stopwatch) fail(err error) error {
	if err == nil {
		return nil
	}
	s.callError = err
	return &PhaseError{Phase: s.phase, Err: err}
}

// end ends the call and its last phase. The phase failed if the call did.
func (s *stopwatch) end() {
	if s.endCall == nil {
		return
	}
	s.endPhase(s.callError)
	s.endCall(s.callError)
	s.ctx, s.endCall, s.endPhase, s.callError = nil, nil, nil, nil
}

// PhaseError names the phase in which an engine failed. It has the text of Err, which names the
// operation.
type PhaseError struct {
	Phase Phase
	Err   error
}

// Error returns the text of Err.
func (e *PhaseError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PhaseError) Unwrap() error { return e.Err }
