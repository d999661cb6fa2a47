package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

// errNoBackend says that an engine or parts have no backend.
var errNoBackend = errors.New("there is no backend")

// begin waits for the turn of a call, and begins the measurement of its phases. end ends both.
// Calls get the turn in the order in which they came. The error is the context's, also if the turn
// is free. Without a name the call has no spans.
func (e *Engine) begin(ctx context.Context, name string, p Phase) error {
	doing := ""
	if name != "" {
		doing = name + ": "
	}
	if e.turn == nil {
		return fmt.Errorf("%s%w", doing, errNoBackend)
	}
	err := wait.Ended(ctx)
	if err == nil {
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			err = wait.Ended(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("%swait for the turn: %w", doing, err)
	}
	if e.resync.Swap(false) {
		e.kernel = nil
	}
	if e.cfg.Span != nil && name != "" {
		e.span, e.endCall = e.cfg.Span(ctx, name)
		_, e.endPhase = e.cfg.Span(e.span, p.String())
	}
	e.phase, e.phaseBegan, e.elapsed = p, time.Now(), Phases{}
	e.callBegan = e.phaseBegan
	return nil
}

// end publishes the knowledge of the kernel, and ends the call. The call's last phase failed if the
// call did.
func (e *Engine) end() {
	e.update(func(*Status) {})
	if e.endCall != nil {
		e.endPhase(e.failure)
		e.endCall(e.failure)
		e.endCall = nil
	}
	e.failure = nil
	<-e.turn
}

// enter ends the current phase and begins the next.
func (e *Engine) enter(p Phase) {
	if e.endCall != nil && p != e.phase {
		e.endPhase(nil)
		_, e.endPhase = e.cfg.Span(e.span, p.String())
	}
	now := time.Now()
	e.elapsed[e.phase] += now.Sub(e.phaseBegan)
	e.phase, e.phaseBegan = p, now
}

// fail returns err as a [PhaseError] of the current phase.
func (e *Engine) fail(err error) error {
	e.failure = err
	return &PhaseError{Phase: e.phase, Err: err}
}

// failed reports a failure in the current phase, and returns a [PhaseError].
func (e *Engine) failed(ctx context.Context, f Failed) error {
	f.Err = e.fail(f.Err)
	e.update(func(s *Status) { s.Failed, s.Err = time.Now(), f.Err })
	e.enter(e.phase)
	f.Backend, f.Phase, f.Phases = e.backend.Name(), e.phase, e.elapsed
	e.observers.emit(ctx, f)
	return f.Err
}
