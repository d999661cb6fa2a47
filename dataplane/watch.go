package dataplane

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/sleep"
)

// Watcher follows what a backend's kernel state depends on and others change, such as the addresses
// of the node. A [Backend] may be one; [Engine.Run] watches as long as it runs.
type Watcher interface {
	// Watch calls changed whenever applying the same state again may give another result, until ctx
	// is done, which is not an error. It may call changed more often than that; changed returns at
	// once. Watch runs while other methods of the backend are called.
	Watch(ctx context.Context, changed func()) error
}

// watch is the watching of one Run.
type watch struct {
	changed   chan struct{}
	failed    chan error
	witnessed chan testimony // has room for the one that is asked for
	asking    bool
	// spawn calls a function, whose context ends with the watching.
	spawn func(func(context.Context))
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// noWatch watches nothing.
func noWatch() *watch {
	return &watch{changed: make(chan struct{}, 1), failed: make(chan error),
		witnessed: make(chan testimony, 1), stop: func() {}}
}

// newWatch begins to watch.
func newWatch(ctx context.Context, again time.Duration, watchers []Watcher) *watch {
	w := noWatch()
	ctx, w.stop = context.WithCancel(ctx)
	w.spawn = func(do func(context.Context)) { w.ended.Go(func() { do(ctx) }) }
	for _, watcher := range watchers {
		w.spawn(func(ctx context.Context) { w.watch(ctx, again, watcher) })
	}
	return w
}

// watch watches. After an error it begins again once the time again has passed, and counts that as
// a change, since changes may have been missed.
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
		if sleep.For(ctx, again) != nil {
			return
		}
		w.note()
	}
}

// note notes a change. Changes that nobody has received become one.
func (w *watch) note() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// close ends the watching.
func (w *watch) close() {
	w.stop()
	w.ended.Wait()
}
