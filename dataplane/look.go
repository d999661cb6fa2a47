package dataplane

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// look is when and at what cost the kernel was last read.
type look struct {
	at      time.Time
	took    time.Duration
	wait    time.Duration // how long after that a suspicion is reason to read again
	suspect bool          // somebody committed since
}

const (
	// readShare bounds the time spent on reading because of a suspicion: after a reading that took
	// t, the next comes after readShare times t, or later.
	readShare = 20
	// maxWait bounds how much later, unless readShare asks for more. It is the default of
	// [RunOptions.Resync], which reads whether there is a suspicion or not.
	maxWait = 5 * time.Minute
)

// lookAt makes sure that what the kernel holds is known, and reports whether it was read for that.
// want is the table that the kernel is to hold; nil reads all.
func (e *Engine) lookAt(ctx context.Context, want *servicemodel.Table) (bool, error) {
	if !e.known || e.unread {
		return true, e.observe(ctx, want)
	}
	i, due, err := e.integrity(ctx)
	switch {
	case err != nil:
		return false, err
	case i == Broken:
		return true, e.observe(ctx, want)
	case due:
		if want != nil {
			want = e.kernel // with this hint only what is not ours is left unread
		}
		return e.verify(ctx, want)
	}
	return false, nil
}

// integrity asks the backend, and says whether a suspicion is reason to read by now.
func (e *Engine) integrity(ctx context.Context) (i Integrity, due bool, err error) {
	if i, err = e.backend.Integrity(ctx); err != nil {
		return i, false, err
	}
	e.look.suspect = e.look.suspect || i == Touched
	return i, e.look.suspect && time.Since(e.look.at) > e.look.wait, nil
}

// intact reports whether an apply of the same state would find nothing to do, as far as that can
// be told without reading the kernel. What is not known, after something failed, is read by
// whoever tries that again.
func (e *Engine) intact(ctx context.Context) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.known || e.unread {
		return true, nil
	}
	i, due, err := e.integrity(ctx)
	return i != Broken && !due, err
}

// verify reads the kernel for a suspicion that may be unfounded: a neighbour who commits without
// end makes for one in each apply. Each time that nothing is found, the next suspicion waits twice
// as long. Where others are in the way of the reading, what is known is good enough until then,
// unless it is broken by now.
func (e *Engine) verify(ctx context.Context, want *servicemodel.Table) (bool, error) {
	before, wait, start := e.kernel, e.look.wait, time.Now()
	err := e.observe(ctx, want)
	switch {
	case errors.Is(err, ErrConflict):
		if i, errLook := e.backend.Integrity(ctx); errLook != nil || i == Broken {
			return true, err
		}
		e.known = true
		e.look = look{at: time.Now(), took: time.Since(start), suspect: true}
	case err != nil:
		return true, err
	case len(e.drift) > 0 || !before.Equal(e.kernel):
		return true, nil
	}
	e.look.wait = max(min(2*wait, maxWait), readShare*e.look.took)
	return err == nil, nil
}

// observe reads the kernel, given what it is about to hold, if that is known.
func (e *Engine) observe(ctx context.Context, want *servicemodel.Table) error {
	e.known = false
	start := time.Now()
	o, err := e.backend.Observe(ctx, want)
	if err != nil {
		return err
	}
	e.kernel, e.drift, e.known, e.unread = o.Table, o.Drift, true, o.Unread
	took := time.Since(start)
	e.look = look{at: time.Now(), took: took, wait: readShare * took}
	return nil
}
