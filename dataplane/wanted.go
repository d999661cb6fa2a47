package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/sleep"
	"github.com/kernlb/kernlb/servicemodel"
)

// Revision numbers what an engine is asked for, in that order, from 1: each [Engine.Set],
// [Engine.Apply] and [Engine.Cleanup] is one. A later one takes the place of all before it.
type Revision uint64

// progress is what becomes of what the engine is asked for. Its mutex is held for moments only,
// never while the kernel is asked, so that Set and Status do not wait for an apply.
type progress struct {
	mu     sync.Mutex
	status Status
	wants  bool // there is a state to hold: nothing was asked for yet, or Cleanup was
	// tried is the revision that was tried last, and err why it failed; nil if it did not.
	tried Revision
	err   error
	// settles counts calls of Settle, and unsettled says that the last one failed.
	settles   int
	unsettled bool
	changed   chan struct{} // closed when any of this changes; nil if nobody waits
	wake      chan struct{} // tells Run that some of this changed
}

// update changes the progress, and wakes who waits for that.
func (p *progress) update(f func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st, applied := &p.status, p.status.Applied
	f(st)
	switch {
	case !st.Pending():
		st.PendingSince = time.Time{}
	case st.PendingSince.IsZero() || st.Applied != applied:
		st.PendingSince = time.Now()
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// ask makes s the state that is wanted; with wants false nothing is.
func (p *progress) ask(s servicemodel.State, wants bool) (r Revision) {
	p.update(func(st *Status) {
		st.Wanted++
		st.State, st.Asked, p.wants, r = s, time.Now(), wants, st.Wanted
	})
	return r
}

// todo returns the newest state that is wanted, and whether it is to be applied: again, if it was.
func (p *progress) todo(again bool) (s servicemodel.State, r Revision, todo bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &p.status
	return st.State, st.Wanted, p.wants && (again || st.Applied != st.Wanted)
}

// Set makes s the state that the kernel is to hold, in place of the one before, and returns at
// once. [Engine.Run] applies it, now or when it begins; of several states that are set meanwhile it
// applies the newest. [Engine.Wait] waits for that, [Engine.Status] tells what became of it.
func (e *Engine) Set(s servicemodel.State) Revision { return e.progress.ask(s, true) }

// Wait waits until the kernel holds what was asked for as revision r or anything newer, and then
// returns nil. What fails is tried again by [Engine.Run]. Wait returns an error when the state was
// refused as a whole ([ErrRefused]), which trying again rarely changes; and when ctx is done, with
// the context's error and that of the last try, if there was one.
func (e *Engine) Wait(ctx context.Context, r Revision) error {
	for {
		changed, err := e.progress.reached(r)
		switch {
		case changed == nil && err != nil:
			return fmt.Errorf("wait for revision %d: %w", r, err)
		case changed == nil:
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		cause := context.Cause(ctx)
		if err != nil {
			return fmt.Errorf("wait for revision %d: %w; the last try: %w", r, cause, err)
		}
		return fmt.Errorf("wait for revision %d: %w", r, cause)
	}
}

// reached returns nil if there is nothing to wait for: err is why, nil if the kernel holds revision
// r. Otherwise the channel is closed when something changes, and err is why the last try failed.
func (p *progress) reached(r Revision) (changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Applied >= r {
		return nil, nil
	}
	if r > p.status.Wanted {
		return nil, fmt.Errorf("there are only %d", p.status.Wanted)
	}
	if p.tried >= r {
		err = p.err
	}
	if errors.Is(err, ErrRefused) {
		return nil, err
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed, err
}

// Finish waits until the kernel holds the newest state that was asked for and no work is left to a
// later time, which it does when it becomes due: a program that stops calls it before it ends Run,
// or after its last Apply. It returns an error where [Engine.Wait] does, and if that work fails.
// How long it takes depends on how long endpoints drain; who does not want to wait for that ends
// the context, and what is left is in [Engine.Status].
func (e *Engine) Finish(ctx context.Context) error {
	for {
		r := e.Status().Wanted
		if err := e.Wait(ctx, r); err != nil {
			return err
		}
		next, err := e.Settle(ctx)
		if err != nil {
			return err
		}
		if next == 0 && e.Status().Wanted == r {
			return nil
		}
		if err := sleep.For(ctx, next); err != nil {
			return err
		}
	}
}
