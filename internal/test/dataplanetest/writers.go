package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// writers is the number of programs that write to one instance at the same time.
const writers = 3

// Writers runs several programs that apply states to one instance, without pause. Each has its own
// backend and engine, as a process would. The programs divide the states: each applies every third
// state. Every apply must succeed. A program that holds the lock in between must find a state that
// was applied. In the end, the kernel must hold the last state of one of the programs. If a program
// waits longer than a second for its turn, because the machine is busy, it may go on without the
// lock, and applies may give up. harmless are lines of drift that are allowed.
func Writers(t *testing.T, under Backend, states []servicemodel.State, harmless ...string) {
	w := newWriting(t, under, states, harmless)
	var looking sync.WaitGroup
	done := make(chan struct{})
	looking.Go(func() { w.look(done) })
	last := w.run(func(ns netns.Namespace) (backends.Backend, error) {
		b, err := under.Open(ns)
		return patient{b, &w.late}, err
	})

	close(done)
	looking.Wait()
	if n := int(w.conflicts.Load()); n > 0 && w.late.Load() {
		t.Logf("%d of %d applies gave up on a busy machine", n, len(states))
	} else if n > 0 {
		t.Errorf("%d of %d applies gave up", n, len(states))
	}
	if n := int(w.observed.Load()); n < len(states)/4 {
		t.Errorf("only %d of %d applies found that another one had written", n, len(states))
	}
	if err := w.holdsOne(last); err != nil && !t.Failed() {
		t.Errorf("the last states of %d writers: %v", writers, err)
	}
}

// WritersWithoutTurns is [Writers] without the lock. An apply may then give up with a conflict; an
// apply that succeeds must be right.
func WritersWithoutTurns(t *testing.T, under Backend, states []servicemodel.State,
	harmless ...string) {
	w := newWriting(t, under, states, harmless)
	w.run(func(ns netns.Namespace) (backends.Backend, error) {
		b, err := under.Open(ns)
		return noTurns{b}, err
	})

	t.Logf("%d of %d applies gave up", w.conflicts.Load(), len(states))
	if err := w.holdsOne(states); err != nil && !t.Failed() {
		t.Error(err)
	}
}

// patient notes whether a backend waited longer for its turn than it surely waits for.
type patient struct {
	backends.Backend
	late *atomic.Bool
}

func (p patient) Unwrap() backends.Backend { return p.Backend }

func (p patient) Lock(ctx context.Context) (unlock func(), err error) {
	start := time.Now()
	unlock, err = p.Backend.(backends.Locker).Lock(ctx)
	if time.Since(start) > time.Second {
		p.late.Store(true)
	}
	return unlock, err
}

// noTurns hides that a backend is a [backends.Locker].
type noTurns struct{ backends.Backend }

func (noTurns) Unwrap() backends.Backend { return nil }

// writersPatience limits the time of all writers together, which is some 20 s on a busy machine.
const writersPatience = 4 * time.Minute

// writing is a test of several writers of one instance.
type writing struct {
	t        *testing.T
	ctx      context.Context
	under    Backend
	ns       *netnstest.NS
	states   []servicemodel.State
	harmless []string

	observed, conflicts atomic.Int32 // applies that read the kernel, and that gave up
	late                atomic.Bool  // a turn came late, see patient
}

func newWriting(t *testing.T, under Backend, states []servicemodel.State,
	harmless []string) *writing {
	t.Helper()
	ns := under.namespace(t)
	ctx, cancel := context.WithTimeout(t.Context(), writersPatience)
	t.Cleanup(cancel)
	return &writing{t: t, ctx: ctx, under: under, ns: ns, states: states, harmless: harmless}
}

// run runs the writers, and returns the last state of each.
func (w *writing) run(open func(netns.Namespace) (backends.Backend, error)) []servicemodel.State {
	last := make([]servicemodel.State, writers)
	var running sync.WaitGroup
	for writer := range last {
		running.Go(func() {
			b, err := open(w.ns.NetNS())
			if err != nil {
				w.t.Error(err)
				return
			}

			defer b.Close()
			engine := dataplane.New(b, nil)
			for i := writer; i < len(w.states); i += writers {
				r, err := settled(engine.Apply(w.ctx, w.states[i]))
				last[writer] = w.states[i]
				switch {
				case errors.Is(err, kernelerr.ErrConflict):
					w.conflicts.Add(1)
				case err != nil:
					w.t.Errorf("writer %d: %v", writer, err)
					return
				case r.Observed:
					w.observed.Add(1)
				}
			}
		})
	}

	running.Wait()
	return last
}

// look takes the lock of a writer now and then, until done is closed, and requires that the kernel
// holds a state that was applied, or nothing yet.
func (w *writing) look(done <-chan struct{}) {
	possible, err := tablesOf(append(slices.Clone(w.states), servicemodel.State{}))
	if err != nil {
		w.t.Error(err)
		return
	}

	for looks := 0; ; {
		select {
		case <-done:
			if looks == 0 && !w.t.Failed() {
				w.t.Error("between two writers: the turn never came")
			}
			return
		case <-time.After(20 * time.Millisecond):
		}

		b, err := w.under.Open(w.ns.NetNS())
		if err != nil {
			w.t.Error(err)
			return
		}

		unlock, err := b.(backends.Locker).Lock(w.ctx)
		if err == nil {
			looks++
			err = holdsTable(w.ctx, w.under, w.ns, possible, w.harmless)
			unlock()
		}

		b.Close()
		if errors.Is(err, kernelerr.ErrConflict) {
			continue // the turn did not come in time
		}
		if err != nil {
			w.t.Errorf("between two writers: %v", err)
			return
		}
	}
}

func (w *writing) holdsOne(states []servicemodel.State) error {
	return holdsOne(w.ctx, w.under, w.ns, states, w.harmless)
}

// holdsOne observes a kernel with a new backend. The kernel must hold one of the states, and
// nothing else except harmless drift.
func holdsOne(ctx context.Context, under Backend, ns *netnstest.NS, states []servicemodel.State,
	harmless []string) error {
	tables, err := tablesOf(states)
	if err != nil {
		return err
	}
	return holdsTable(ctx, under, ns, tables, harmless)
}

// tablesOf resolves states.
func tablesOf(states []servicemodel.State) ([]*servicemodel.Table, error) {
	var tables []*servicemodel.Table
	for _, s := range states {
		t, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}

	return tables, nil
}

// holdsTable is holdsOne for states that were resolved.
func holdsTable(ctx context.Context, under Backend, ns *netnstest.NS, tables []*servicemodel.Table,
	harmless []string) error {
	b, err := under.Open(ns.NetNS())
	if err != nil {
		return err
	}
	defer b.Close()
	o, err := b.Observe(ctx, nil)
	if err != nil {
		return err
	}
	drift := slices.DeleteFunc(slices.Clone(o.Drift), func(line string) bool {
		return slices.Contains(harmless, line)
	})

	differs := func(want *servicemodel.Table) *servicemodel.ChangeSet {
		return servicemodel.Diff(o.Table, want.Arrange(o.Table))
	}
	for _, want := range tables {
		if want.Len() == o.Table.Len() && len(drift) == 0 &&
			(want.Len() == 0 || differs(want).Empty()) {
			return nil
		}
	}

	var nearest string
	for _, want := range tables {
		if text := differs(want).String(); nearest == "" || len(text) < len(nearest) {
			nearest = text
		}
	}

	return fmt.Errorf("the kernel holds none of the states; drift %v; to come to the nearest:\n%s",
		drift, nearest)
}
