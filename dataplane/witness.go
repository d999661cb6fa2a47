package dataplane

import (
	"context"
	"fmt"
	"time"
)

// Program is a program that changed something in the kernel.
type Program struct {
	// Name is that of the thread that did it, at most 15 bytes (comm in proc(5)).
	Name string
	// Thread is its number in the initial pid namespace: of a program with one thread, its process.
	Thread uint32
}

// Witness is a [Backend] that can find out which program changes what the backend has in the
// kernel. To be told of that makes each change of any program slower, so [Engine.Run] asks only
// when somebody undoes repairs again and again.
type Witness interface {
	// Witness waits until another program changes what the backend has, and returns that program.
	// It runs while other methods of the backend are called. When ctx ends, so does it, with the
	// context's error.
	Witness(ctx context.Context) (Program, error)
}

// witnessFor is how long it is asked who undoes repairs, each time that they begin to wait.
const witnessFor = 10 * time.Second

// testimony is what became of asking.
type testimony struct {
	event RepairUndone
	err   error
}

// askWitness begins to ask who undoes repairs, unless that is under way, or the backend cannot
// tell. One that was asked ends with the watching.
func (l *loop) askWitness(ctx context.Context) {
	b, err := l.engine.current(ctx)
	w, ok := b.(Witness)
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
			err = nil // nobody did anything, or Run ends
		}
		watch.witnessed <- testimony{RepairUndone{backend, p}, err}
	})
}

// heard tells what a witness has said.
func (l *loop) heard(ctx context.Context, t testimony) {
	l.watch.asking = false
	switch {
	case t.err != nil:
		l.tell(ctx, WatchFailed{fmt.Errorf("find out who undoes repairs: %w", t.err)})
	case t.event.Program != Program{}:
		l.tell(ctx, t.event)
	}
}
