package dataplane

import (
	"context"
	"fmt"
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

// watchBackend watches the node and the objects that the current backend depends on. It stops
// watching for the previous backend.
func (l *loop) watchBackend(ctx context.Context) error {
	b, err := l.backend(ctx)
	if err != nil {
		return err
	}
	l.unwatch()
	l.watching, l.stop = context.WithCancel(ctx)
	if w, ok := as[Watcher](b); ok {
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
func (l *loop) backend(ctx context.Context) (Backend, error) {
	if err := l.engine.begin(ctx, "", PhaseLock); err != nil {
		return nil, err
	}
	defer l.engine.end()
	return l.engine.backend, nil
}

// watch runs a watcher. After an error it waits for RetryMax, counts that as a change because
// changes may have been missed, and watches again.
func (l *loop) watch(w Watcher) {
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

// askWitness asks the backend who undoes repairs, unless that is already in progress or the backend
// is no Witness. The question ends with the watching.
func (l *loop) askWitness(ctx context.Context) {
	b, err := l.backend(ctx)
	w, ok := as[Witness](b)
	if err != nil || !ok || !l.asking.CompareAndSwap(false, true) {
		return
	}
	watching := l.watching
	l.watchers.Go(func() {
		defer l.asking.Store(false)
		limited, cancel := context.WithTimeout(watching, witnessFor)
		defer cancel()
		p, err := w.Witness(limited)
		switch {
		case limited.Err() != nil: // no program did anything, or Run ends
		case err != nil:
			l.send(watching, WatchFailed{fmt.Errorf("find out who undoes repairs: %w", err)})
		case p != Program{}:
			l.send(watching, RepairUndone{b.Name(), p})
		}
	})
}
