package dataplane

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/wait"
)

// watchers are the goroutines of a Run that watch the kernel.
type watchers struct {
	backend backends.Backend // the present backend
	ctx     context.Context  // for watchers of the present backend and node; stop ends it
	stop    context.CancelFunc
	running sync.WaitGroup
	pause   time.Duration // after an error
	changed chan struct{} // watched objects changed; further changes are merged
	events  chan Event    // of watchers and blamers
	asking  atomic.Bool   // the backend is being asked who undoes repairs
}

func (w *watchers) end() {
	w.stop()
	w.running.Wait()
}

// watchBackend watches the node and the objects that the current backend depends on. It stops
// watching for the previous backend.
func (l *loop) watchBackend(ctx context.Context) error {
	if _, err := l.engine.begin(ctx, "", PhaseLock); err != nil {
		return err
	}
	b := l.engine.backend
	l.engine.end()
	w := &l.watchers
	w.end()
	w.backend = b
	w.ctx, w.stop = context.WithCancel(ctx)
	if b, ok := as[backends.Watcher](b); ok {
		w.watch(b)
	}
	if n := l.engine.cfg.Node; n != nil {
		w.watch(n)
	}
	return nil
}

// watch runs a watcher. When the watcher ends, watch pauses, signals a change, because changes may
// have been missed, and watches again.
func (w *watchers) watch(b backends.Watcher) {
	note := func() { signal(w.changed) }
	ctx := w.ctx
	w.running.Go(func() {
		for {
			if err := b.Watch(ctx, note); err != nil && ctx.Err() == nil {
				w.send(ctx, WatchFailed{fmt.Errorf("watch for changes of the node: %w", err)})
			}
			if wait.For(ctx, w.pause) != nil {
				return
			}
			note()
		}
	})
}

// send gives Run an event to emit, unless the context has ended.
func (w *watchers) send(ctx context.Context, ev Event) {
	select {
	case w.events <- ev:
	case <-ctx.Done():
	}
}

// blameFor is the time that the backend listens whenever repairs begin to wait.
const blameFor = 10 * time.Second

// blame asks the backend which program undoes repairs, unless it is already asking or the backend
// is no Blamer. end also stops this.
func (w *watchers) blame() {
	b, ok := as[backends.Blamer](w.backend)
	if !ok || !w.asking.CompareAndSwap(false, true) {
		return
	}
	ctx, name := w.ctx, w.backend.Name()
	w.running.Go(func() {
		defer w.asking.Store(false)
		limited, cancel := context.WithTimeout(ctx, blameFor)
		defer cancel()
		p, err := b.Blame(limited)
		switch {
		case limited.Err() != nil: // no program did anything, or Run ends
		case err != nil:
			w.send(ctx, WatchFailed{fmt.Errorf("find out who undoes repairs: %w", err)})
		case p != backends.Program{}:
			w.send(ctx, RepairUndone{name, p})
		}
	})
}
