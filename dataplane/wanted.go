package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// Revision numbers the requests to an engine in their order, from 1: each [Engine.Set],
// [Engine.Apply] and [Engine.Cleanup]. A later request replaces all earlier ones.
type Revision uint64

// progress records the requests to an engine and their outcome. Its mutex is held only briefly and
// never during a request to the kernel, so that Set and Status do not wait for an apply.
type progress struct {
	mu     sync.Mutex
	status Status
	wants  bool // a state is wanted: false before the first request, and after Cleanup
	// tried is the revision of the last try, and err its error, or nil.
	tried Revision
	err   error
	// settles counts calls of Settle, and unsettled says that the last one failed.
	settles   int
	unsettled bool
	changed   chan struct{} // closed when any of this changes; nil if no goroutine waits
	wake      chan struct{} // tells Run that some of this changed
}

// update changes the progress, and wakes the waiting goroutines.
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

// ask makes s the wanted state, or no state if wants is false.
func (p *progress) ask(s servicemodel.State, wants bool) (r Revision) {
	p.update(func(st *Status) {
		st.Wanted++
		st.State, st.Asked, p.wants, r = s, time.Now(), wants, st.Wanted
	})
	return r
}

// todo returns the newest wanted state, and whether it is to be applied. With again set, it is to
// be applied even if it was before.
func (p *progress) todo(again bool) (s servicemodel.State, r Revision, todo bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &p.status
	return st.State, st.Wanted, p.wants && (again || st.Applied != st.Wanted)
}

// Set makes s the wanted state, in place of the previous one, and returns at once. [Engine.Run]
// applies it, now or when it begins. If several states are set meanwhile, Run applies the newest.
// [Engine.Wait] waits for that, and [Engine.Status] reports the progress.
func (e *Engine) Set(s servicemodel.State) Revision { return e.progress.ask(s, true) }

// Wait waits until the kernel holds revision r or a newer one, and then returns nil. [Engine.Run]
// retries after failures meanwhile. Wait returns an error if the state was refused as a whole
// ([ErrRefused]), because a retry rarely helps. It also returns an error when ctx is done: the
// context's error, joined with the last try's if that failed.
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
		cause := wait.Ended(ctx)
		if err != nil {
			return fmt.Errorf("wait for revision %d: %w; the last try: %w", r, cause, err)
		}
		return fmt.Errorf("wait for revision %d: %w", r, cause)
	}
}

// reached returns a nil channel if the wait is over: err is nil if the kernel holds revision r.
// Otherwise the channel is closed when something changes, and err is the last try's error.
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

// Finish waits until the kernel holds the newest state and no later work is left. It does this work
// itself when it is due. A program that stops calls it before it ends Run, or after its last Apply.
// Finish returns an error in the same cases as [Engine.Wait], and if later work fails. It may take
// as long as endpoints drain. A context can end the wait; [Engine.Status] then says what is left.
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
		if err := wait.For(ctx, next); err != nil {
			return err
		}
	}
}
