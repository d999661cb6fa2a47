package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Switch changes the backend: the new one is made to hold what was last applied, and then the one
// before is cleaned up, so that packets of services are led by at least one of them all the time.
// Connections go on where conntrack leads them, which is with nftables and iptables. To and from
// ipvs, which knows connections of its own, they end, and new ones are refused while both are in
// place: a fraction of a second. Clients with session affinity may be given another endpoint by the
// new backend, which does not know what the old one remembers.
//
// If the new backend fails, it is cleaned up, and the engine stays with the one before. If the one
// before cannot be cleaned up, there is a result and an error: the engine works with the new one,
// and [Engine.Cleanup] of an engine made for the old one tries that again. Closing both backends
// stays with the caller. The engine may run meanwhile.
func (e *Engine) Switch(ctx context.Context, b Backend) (*Result, error) {
	start := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.held
	e.held = newHeld(b)
	r, err := e.hold(ctx, before)
	if err != nil {
		return nil, fmt.Errorf("switch from %s to %s: %w", before.backend.Name(), b.Name(), err)
	}
	select {
	case e.switched <- struct{}{}:
	default:
	}
	_, err = (&Engine{held: before}).Cleanup(ctx)
	if r.Duration = time.Since(start); err != nil {
		return r, fmt.Errorf("switched to %s; clean up %s: %w", b.Name(), before.backend.Name(),
			err)
	}
	e.log.InfoContext(ctx, "switched", "from", before.backend.Name(), "to", b.Name(), "duration",
		r.Duration)
	return r, nil
}

// hold makes a new backend hold what was last applied. If it cannot, everything is as before.
func (e *Engine) hold(ctx context.Context, before held) (*Result, error) {
	if !e.applied {
		return &Result{Backend: e.backend.Name()}, nil
	}
	r, err := e.applyInTurn(ctx, e.state)
	if err == nil {
		return r, nil
	}
	// What it holds in part must not stay, also if the context is why it failed.
	_, errCleanup := (&Engine{held: newHeld(e.backend)}).Cleanup(context.WithoutCancel(ctx))
	e.held = before
	return nil, errors.Join(err, errCleanup)
}

// current returns the backend.
func (e *Engine) current() Backend {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.backend
}
