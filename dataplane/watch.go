package dataplane

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/wait"
)

// Watcher follows objects that a backend's kernel state depends on and that others change, such as
// the addresses of the node. A [Backend] may be one. [Engine.Run] watches as long as it runs.
type Watcher interface {
	// Watch calls changed whenever another apply of the same state may have another result. It
	// returns when ctx is done, which is not an error. It may call changed more often than
	// necessary; changed returns at once. Watch runs while other methods of the backend are called.
	Watch(ctx context.Context, changed func()) error
}

// watch holds the watchers of one Run.
type watch struct {
	changed   chan struct{}
	failed    chan error
	witnessed chan testimony // has room for one testimony; at most one is requested at a time
	asking    bool
	// spawn runs a function whose context ends with the watching.
	spawn func(func(context.Context))
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// noWatch returns a watch without watchers.
func noWatch() *watch {
	return &watch{changed: make(chan struct{}, 1), failed: make(chan error),
		witnessed: make(chan testimony, 1), stop: func() {}}
}

// newWatch starts watchers.
func newWatch(ctx context.Context, again time.Duration, watchers []Watcher) *watch {
	w := noWatch()
	ctx, w.stop = context.WithCancel(ctx)
	w.spawn = func(do func(context.Context)) { w.ended.Go(func() { do(ctx) }) }
	for _, watcher := range watchers {
		w.spawn(func(ctx context.Context) { w.watch(ctx, again, watcher) })
	}
	return w
}

// watch runs a watcher. After an error it waits for the time again, counts that as a change because
// changes may have been missed, and watches again.
func (w *watch) watch(ctx context.Context, again time.Duration, watcher Watcher) {
	for {
		err := watcher.Watch(ctx, w.note)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			select {
			case w.failed <- fmt.Errorf("watch for changes of the node: %w", err):
			case <-ctx.Done():
				return
			}
		}
		if wait.For(ctx, again) != nil {
			return
		}
		w.note()
	}
}

// note records a change. Changes that Run has not received yet are merged.
func (w *watch) note() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close ends the watchers.
func (w *watch) close() {
	w.stop()
	w.ended.Wait()
}
