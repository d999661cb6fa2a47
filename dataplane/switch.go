package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Switch changes the backend: the new one is made to hold what was last applied, and then the one
// before is cleaned up, so that packets of services are led by at least one of them all the time.
// No new connection is refused. Open ones go on where conntrack leads them, which is with nftables
// and iptables; those of ipvs, which knows connections of its own, end with it. Clients with
// session affinity may be given another endpoint by the new backend, which does not know what the
// old one remembers.
//
// If the new backend fails, it is cleaned up, and the engine stays with the one before. If the one
// before cannot be cleaned up, there is a result and an error: the engine works with the new one,
// and [Engine.Cleanup] of an engine made for the old one tries that again. Closing both backends
// stays with the caller. The engine may run meanwhile.
func (e *Engine) Switch(ctx context.Context, b Backend) (*Result, error) {
	if err := e.take(ctx); err != nil {
		return nil, fmt.Errorf("switch: %w", err)
	}
	defer e.give()
	start := time.Now()
	before := e.held
	from := before.backend.Name()
	e.held = newHeld(b)
	e.phase.begin(PhaseLock)
	r, err := e.hold(ctx, before)
	if err != nil {
		return nil, e.failed(ctx, "switch", e.revision(), fmt.Errorf("switch from %s to %s: %w",
			from, b.Name(), err))
	}
	select {
	case e.switched <- struct{}{}:
	default:
	}
	e.phase.enter(PhaseCleanup)
	_, err = e.cleanup(ctx, before.backend)
	e.phase.enter(PhaseCleanup)
	r.Phases, r.Duration = e.phase.elapsed, time.Since(start)
	if err != nil {
		return r, e.failed(ctx, "switch", r.Revision, fmt.Errorf("switched to %s; clean up %s: %w",
			b.Name(), from, err))
	}
	if e.observers.any() {
		e.observers.emit(ctx, Switched{From: from, To: b.Name(), Result: r})
	}
	return r, nil
}

// hold makes a new backend hold what was last applied. If it cannot, everything is as before.
func (e *Engine) hold(ctx context.Context, before held) (*Result, error) {
	if !e.applied {
		return &Result{Backend: e.backend.Name()}, nil
	}
	r, err := e.applyInTurn(ctx, e.state)
	if err != nil {
		// What it holds in part must not stay, also if the context is why it failed.
		_, errCleanup := e.cleanup(context.WithoutCancel(ctx), e.backend)
		e.held = before
		return nil, errors.Join(err, errCleanup)
	}
	r.Revision = e.revision()
	e.refused, e.conflicts = slices.Clone(r.Refused), slices.Clone(r.Conflicts)
	e.progress.update(func(s *Status) {
		s.Backend, s.Refused, s.Conflicts = r.Backend, e.refused, e.conflicts
	})
	return r, nil
}

// revision returns what was last applied.
func (e *Engine) revision() Revision { s := e.Status(); return s.Applied }

// current returns the backend.
func (e *Engine) current(ctx context.Context) (Backend, error) {
	if err := e.take(ctx); err != nil {
		return nil, err
	}
	defer e.give()
	return e.backend, nil
}
