package dataplane

import (
	"strconv"
	"time"
)

// Phase is a step in a call of an engine.
type Phase int

// The phases, in their order.
const (
	// PhaseLock waits for other writers of the instance, see [backends.Locker].
	PhaseLock Phase = iota
	// PhaseResolve resolves the state into a table.
	PhaseResolve
	// PhaseObserve checks whether the kernel's contents may have changed, and reads the kernel if
	// so.
	PhaseObserve
	// PhaseCheck computes the changes, asks the backend for refusals, and calls [Config.Approve].
	PhaseCheck
	// PhaseCommit plans and writes.
	PhaseCommit
	// PhaseSettle does the work of earlier applies that is due.
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

// Phases is the time of each phase, by [Phase]. After conflicts, it is the sum over all tries. The
// wait before a try belongs to the phase that was repeated.
type Phases [PhaseCleanup + 1]time.Duration

// PhaseError is an error with the phase in which it happened. Error returns the text of Err, which
// names the operation.
type PhaseError struct {
	Phase Phase
	Err   error
}

// Error returns the text of Err.
func (e *PhaseError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PhaseError) Unwrap() error { return e.Err }
