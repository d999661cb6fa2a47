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

// Program is a program that changed the kernel's state.
type Program struct {
	// Name is the name of the thread, at most 15 bytes (comm in proc(5)).
	Name string
	// Thread is the thread's number in the initial pid namespace. For a program with one thread it
	// is the process number.
	Thread uint32
}

// Witness is a [Backend] that can find out which program changes the backend's objects. Listening
// for that slows down every change by any program. So [Engine.Run] asks only while another program
// undoes repairs again and again.
type Witness interface {
	// Witness waits until another program changes the backend's objects, and returns that program.
	// It runs while other methods of the backend are called. When ctx ends, it returns the
	// context's error.
	Witness(ctx context.Context) (Program, error)
}

// witnessFor is how long the witness listens each time that repairs begin to wait.
const witnessFor = 10 * time.Second

// testimony is the answer of a witness.
type testimony struct {
	event RepairUndone
	err   error
}

// askWitness asks the backend who undoes repairs, unless that is already in progress or the backend
// is no Witness. The question ends with the watching.
func (l *loop) askWitness(ctx context.Context) {
	b, err := l.engine.current(ctx)
	w, ok := as[Witness](b)
	if err != nil || !ok || l.watch.asking {
		return
	}
	watch, backend := l.watch, b.Name()
	watch.asking = true
	watch.spawn(func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, witnessFor)
		defer cancel()
		p, err := w.Witness(limited)
		if limited.Err() != nil {
			err = nil // no program did anything, or Run ends
		}
		watch.witnessed <- testimony{RepairUndone{backend, p}, err}
	})
}

// heard emits the answer of a witness.
func (l *loop) heard(ctx context.Context, t testimony) {
	l.watch.asking = false
	switch {
	case t.err != nil:
		l.tell(ctx, WatchFailed{fmt.Errorf("find out who undoes repairs: %w", t.err)})
	case t.event.Program != Program{}:
		l.tell(ctx, t.event)
	}
}
