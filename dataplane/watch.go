package dataplane

import (
	"context"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
)

// watchBackend watches the node and the objects that the current backend depends on. It stops
// watching for the previous backend.
func (l *loop) watchBackend(ctx context.Context) error {
	b, err := l.backend(ctx)
	if err != nil {
		return err
	}
	l.unwatch()
	l.watching, l.stop = context.WithCancel(ctx)
	if w, ok := as[backends.Watcher](b); ok {
		l.watch(w)
	}
	if n := l.engine.cfg.Node; n != nil {
		l.watch(n)
	}
	return nil
}

// unwatch ends the watchers.
func (l *loop) unwatch() {
	l.stop()
	l.watchers.Wait()
}

// backend returns the engine's backend.
func (l *loop) backend(ctx context.Context) (backends.Backend, error) {
	if _, err := l.engine.begin(ctx, "", PhaseLock); err != nil {
		return nil, err
	}
	defer l.engine.end()
	return l.engine.backend, nil
}

// watch runs a watcher. After an error it waits for RetryMax, counts that as a change because
// changes may have been missed, and watches again.
func (l *loop) watch(w backends.Watcher) {
	note := func() {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
	ctx := l.watching
	l.watchers.Go(func() {
		for {
			if err := w.Watch(ctx, note); err != nil && ctx.Err() == nil {
				l.send(ctx, WatchFailed{fmt.Errorf("watch for changes of the node: %w", err)})
			}
			if wait.For(ctx, l.opts.RetryMax) != nil {
				return
			}
			note()
		}
	})
}

// send gives Run an event to emit, unless the context has ended.
func (l *loop) send(ctx context.Context, ev Event) {
	select {
	case l.events <- ev:
	case <-ctx.Done():
	}
}

// blameFor is how long the backend listens each time that repairs begin to wait.
const blameFor = 10 * time.Second

// askBlame asks the backend who undoes repairs, unless that is already in progress or the backend
// is no Blamer. The question ends with the watching.
func (l *loop) askBlame(ctx context.Context) {
	b, err := l.backend(ctx)
	w, ok := as[backends.Blamer](b)
	if err != nil || !ok || !l.asking.CompareAndSwap(false, true) {
		return
	}
	watching := l.watching
	l.watchers.Go(func() {
		defer l.asking.Store(false)
		limited, cancel := context.WithTimeout(watching, blameFor)
		defer cancel()
		p, err := w.Blame(limited)
		switch {
		case limited.Err() != nil: // no program did anything, or Run ends
		case err != nil:
			l.send(watching, WatchFailed{fmt.Errorf("find out who undoes repairs: %w", err)})
		case p != backends.Program{}:
			l.send(watching, RepairUndone{b.Name(), p})
		}
	})
}
