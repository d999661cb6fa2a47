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
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// writers is how many programs write to one instance at once.
const writers = 3

// Writers lets several programs apply states to one instance, without pause: each with a backend
// and an engine of its own, as processes would. Every apply must succeed, whoever takes the turn
// of a writer meanwhile must find a state that was applied, and what the kernel holds in the end
// must be the last state of one of them. Of the states, each program applies those that are left
// to it by turns. harmless are lines of drift that may be there.
func Writers(t *testing.T, under Backend, states []servicemodel.State, harmless ...string) {
	w := newWriting(t, under, states, harmless)
	last := make([]servicemodel.State, writers)
	var running sync.WaitGroup
	var observed atomic.Int32
	done := make(chan struct{})
	for i := range writers {
		running.Go(func() {
			w.write(i, under.Open, func(s servicemodel.State, r *dataplane.Result, err error) {
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
				}
				if r != nil && r.Observed {
					observed.Add(1)
				}
				last[i] = s
			})
		})
	}
	var looking sync.WaitGroup
	looking.Go(func() { w.look(done) })
	running.Wait()
	close(done)
	looking.Wait()
	if t.Failed() {
		return
	}
	if n := int(observed.Load()); n < len(states)/4 {
		t.Errorf("only %d of %d applies found that another one had written", n, len(states))
	}
	if err := w.holdsOne(last); err != nil {
		t.Errorf("the last states of %d writers: %v", writers, err)
	}
}

// WritersWithoutTurns is [Writers], except that they do not take turns. An apply may give up then
// with a conflict; whoever does not is right.
func WritersWithoutTurns(t *testing.T, under Backend, states []servicemodel.State,
	harmless ...string) {
	w := newWriting(t, under, states, harmless)
	open := func(netns int) (dataplane.Backend, error) {
		b, err := under.Open(netns)
		return noTurns{b}, err
	}
	var running sync.WaitGroup
	var conflicts atomic.Int32
	for i := range writers {
		running.Go(func() {
			w.write(i, open, func(_ servicemodel.State, _ *dataplane.Result, err error) {
				switch {
				case errors.Is(err, dataplane.ErrConflict):
					conflicts.Add(1)
				case err != nil:
					t.Errorf("writer %d: %v", i, err)
				}
			})
		})
	}
	running.Wait()
	t.Logf("%d of %d applies gave up", conflicts.Load(), len(states))
	if err := w.holdsOne(states); err != nil && !t.Failed() {
		t.Error(err)
	}
}

// noTurns hides that a backend is a [dataplane.Locker].
type noTurns struct{ dataplane.Backend }

// writersPatience is how long all writers together may take: some 20 s on a busy machine.
const writersPatience = 4 * time.Minute

// writing is a test of several writers of one instance.
type writing struct {
	t        *testing.T
	ctx      context.Context
	under    Backend
	ns       *netnstest.NS
	states   []servicemodel.State
	harmless []string
}

func newWriting(t *testing.T, under Backend, states []servicemodel.State,
	harmless []string) *writing {
	t.Helper()
	under.need(t)
	netnstest.Require(t)
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), writersPatience)
	t.Cleanup(cancel)
	return &writing{t, ctx, under, ns, states, harmless}
}

// write applies the states of one writer, until one fails in another way than by a conflict.
func (w *writing) write(writer int, open func(netns int) (dataplane.Backend, error),
	applied func(servicemodel.State, *dataplane.Result, error)) {
	b, err := open(w.ns.Fd())
	if err != nil {
		w.t.Error(err)
		return
	}
	defer b.Close()
	engine := dataplane.New(b, nil)
	for i := writer; i < len(w.states); i += writers {
		r, err := engine.Apply(w.ctx, w.states[i])
		applied(w.states[i], r, err)
		if err != nil && !errors.Is(err, dataplane.ErrConflict) {
			return
		}
	}
}

// look takes the turn of a writer now and then, until done is closed, and requires that the kernel
// holds a state that was applied, or nothing yet. It does nothing if there are no turns.
func (w *writing) look(done <-chan struct{}) {
	possible := append(slices.Clone(w.states), servicemodel.State{})
	for {
		select {
		case <-done:
			return
		case <-time.After(20 * time.Millisecond):
		}
		b, err := w.under.Open(w.ns.Fd())
		if err != nil {
			w.t.Error(err)
			return
		}
		locker, ok := b.(dataplane.Locker)
		if !ok {
			b.Close()
			return
		}
		unlock, err := locker.Lock(w.ctx)
		if err == nil {
			err = w.holdsOne(possible)
			unlock()
		}
		b.Close()
		if err != nil {
			w.t.Errorf("between two writers: %v", err)
			return
		}
	}
}

func (w *writing) holdsOne(states []servicemodel.State) error {
	return holdsOne(w.ctx, w.under, w.ns, states, w.harmless)
}

// holdsOne observes a kernel with a new backend. It must hold one of the states, and nothing else
// but harmless drift.
func holdsOne(ctx context.Context, under Backend, ns *netnstest.NS, states []servicemodel.State,
	harmless []string) error {
	b, err := under.Open(ns.Fd())
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
	var nearest string
	for _, s := range states {
		want, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return err
		}
		c := servicemodel.Diff(o.Table, want.Arrange(o.Table))
		c.Health = nil // is not in the kernel
		nothing := o.Table.Len() == 0 && want.Len() == 0
		if (nothing || c.Empty()) && len(drift) == 0 {
			return nil
		}
		if text := c.String(); nearest == "" || len(text) < len(nearest) {
			nearest = text
		}
	}
	return fmt.Errorf("the kernel holds none of the states; drift %v; to come to the nearest:\n%s",
		drift, nearest)
}
