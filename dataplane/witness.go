package dataplane

import (
	"context"
	"fmt"
	"time"
)

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
