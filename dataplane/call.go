package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

// begin waits for the turn of a call, and starts to measure its phases. end ends both. Calls take
// turns in the order of their arrival. If the context is done, begin returns its error, even if the
// turn is free. A call without a name has no spans. The call must use the returned context.
func (e *Engine) begin(ctx context.Context, name string, p Phase) (context.Context, error) {
	doing := ""
	if name != "" {
		doing = name + ": "
	}
	if e.turn == nil {
		return nil, &PhaseError{p, fmt.Errorf("%s%w", doing, cmp.Or(e.unusable, errNoBackend))}
	}
	if e.isWithin(ctx) {
		return nil, &PhaseError{p, fmt.Errorf("%s%w", doing, errWithin)}
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
		return nil, fmt.Errorf("%swait for the turn: %w", doing, err)
	}
	if e.resync.Swap(false) {
		e.known.inKernel = nil
	}
	ctx = context.WithValue(ctx, within{e}, true)
	if e.cfg.Span != nil && name != "" {
		ctx, e.endCall = e.cfg.Span(ctx, name)
		e.span = ctx
		_, e.endPhase = e.cfg.Span(ctx, p.String())
	}

	e.phase, e.phaseBegan, e.elapsed = p, time.Now(), Phases{}
	e.callBegan = e.phaseBegan
	return ctx, nil
}

// within is the key that marks the contexts that a call of an engine passes to observers and other
// callbacks. A callback must not wait for the turn, because the call keeps the turn until the
// callback returns. Calls of different engines may be nested.
type within struct{ engine *Engine }

// errWithin says that a call would wait for itself.
var errWithin = errors.New("the context is that of another call of the engine, which may wait " +
	"for this one: observers, Approve and Flows need a goroutine and another context for it")

// isWithin reports whether ctx comes from a call of the engine.
func (e *Engine) isWithin(ctx context.Context) bool { return ctx.Value(within{e}) != nil }

// end publishes what the engine knows about the kernel, and ends the call.
func (e *Engine) end() {
	e.update(func(*Status) {})
	if e.endCall != nil {
		e.endPhase(e.phaseFailure)
		e.endCall(e.failure)
		e.endCall = nil
	}

	e.failure, e.phaseFailure = nil, nil
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

// fail makes err the error of the call and of its current phase, and returns a [PhaseError].
func (e *Engine) fail(err error) error {
	e.failure, e.phaseFailure = err, err
	return &PhaseError{Phase: e.phase, Err: err}
}

// failed reports that the call failed in the current phase, and returns a [PhaseError].
func (e *Engine) failed(ctx context.Context, f Failed) error {
	e.failure = f.Err
	return e.tellFailed(ctx, f)
}

// tellFailed reports that the current phase failed, and returns a [PhaseError].
func (e *Engine) tellFailed(ctx context.Context, f Failed) error {
	e.phaseFailure = f.Err
	f.Err = &PhaseError{Phase: e.phase, Err: f.Err}
	e.update(func(s *Status) { s.Failed, s.Err = time.Now(), f.Err })
	e.enter(e.phase)
	f.Backend, f.Phase, f.Phases = e.backend.Name(), e.phase, e.elapsed
	e.observers.emit(ctx, f)
	return f.Err
}
