package ipvs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/servicemodel"
)

// unlocked hides that a backend is a Locker and a Settler.
type unlocked struct{ dataplane.Backend }

// writerState is the state that a writer applies in one of its rounds.
func writerState(w, i int) servicemodel.State {
	return rigState([]string{fmt.Sprintf("10.244.%d.%d", w+1, i%7+1),
		fmt.Sprintf("10.244.%d.100", w+1)})
}

// write makes all engines apply their states at the same time. It returns how often they
// gave up.
func write(t *testing.T, engines []*dataplane.Engine, applies int) (conflicts int32) {
	t.Helper()
	var gaveUp atomic.Int32
	var all sync.WaitGroup
	for w, e := range engines {
		all.Go(func() {
			for i := range applies {
				_, err := e.Apply(context.Background(), writerState(w, i))
				switch {
				case errors.Is(err, dataplane.ErrConflict):
					gaveUp.Add(1)
				case err != nil:
					t.Errorf("writer %d, apply %d: %v", w, i, err)
					return
				}
			}
		})
	}
	all.Wait()
	return gaveUp.Load()
}

// requireLast requires the last state of one of the writers.
func (r *rig) requireLast(writers, applies int) {
	r.t.Helper()
	var want [][]string
	for w := range writers {
		clean := newRig(r.t)
		clean.apply(clean.engine(Config{DrainLimit: -1}), writerState(w, applies-1))
		want = append(want, clean.state())
	}
	require.Contains(r.t, want, r.state())
}

// Three writers alternate, each with its own backend. Every apply succeeds, and the kernel ends up
// with the last state of one of them.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	var states []servicemodel.State
	for i := range 120 {
		states = append(states, writerState(i%3, i))
	}
	under := onFake().Backend
	dataplanetest.Writers(t, dataplanetest.Backend{Open: func(ns int) (dataplane.Backend, error) {
		b, err := under.Open(ns)
		return slow{b}, err
	}}, states)
}

// slow waits before it locks, so that writers alternate.
type slow struct{ dataplane.Backend }

func (s slow) Lock(ctx context.Context) (unlock func(), err error) {
	time.Sleep(3 * time.Millisecond)
	return s.Backend.(dataplane.Locker).Lock(ctx)
}

// Without the lock, a writer that was overtaken reports a conflict, and the kernel holds the state
// of the last successful apply.
func TestWritersAreRightWithoutTheLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const applies = 60
	engines := make([]*dataplane.Engine, 2)
	for w := range engines {
		engines[w] = dataplane.New(unlocked{r.backend(Config{DrainLimit: -1})}, nil)
	}
	conflicts := write(t, engines, applies)
	t.Logf("%d of %d applies gave up", conflicts, len(engines)*applies)
	// A writer that gave up may have left its work half done. Then the version says so. Otherwise
	// the kernel has the state of one of the last successful applies.
	b := r.backend()
	o := observation(t, b)
	require.Equal(t, b.pl.have.companion.version.writing, len(o.Drift) > 0)
	if conflicts == 0 {
		r.requireLast(len(engines), applies)
	}
	final := writerState(0, 0)
	applied(t, r.engine(Config{DrainLimit: -1}), final)
	clean := newRig(t)
	clean.apply(clean.engine(Config{DrainLimit: -1}), final)
	require.Equal(t, clean.state(), r.state())
}

// Two backends have observed the same state. The second to commit has a conflict, whatever it
// changes, and whether the first has ended or was killed on the way. No update is lost.
func TestTheSecondWriterHasAConflict(t *testing.T) {
	t.Parallel()
	one, two, three := rigState([]string{"10.244.1.1"}), rigState([]string{"10.244.9.2"}),
		rigState([]string{"10.244.9.3"})
	r := newRig(t)
	r.apply(r.engine(), one)
	for n := 1; ; n++ {
		first, toTwo := r.change(two)
		second, toThree := r.change(three)
		steps := first.steps(first.pl.plan(toTwo))
		if n > len(steps) {
			break
		}
		require.NoError(t, first.run(t.Context(), steps[:n]))
		_, err := second.Commit(t.Context(), toThree)
		require.ErrorIs(t, err, dataplane.ErrConflict)

		// The first writer is overtaken, and cannot end.
		applied(t, r.engine(), three)
		if n < len(steps) {
			require.ErrorIs(t, first.run(t.Context(), steps[len(steps)-1:]), dataplane.ErrConflict)
		}
		r.apply(r.engine(), three)
		r.apply(r.engine(), one)
	}
}

// Deleting drained destinations is a commit as well.
func TestDrainingIsAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.commit(rigState([]string{"10.244.1.1", "10.244.2.2"}))
	b := r.commit(rigState([]string{"10.244.1.1"}))
	draining := len(b.draining)
	require.Positive(t, draining)
	before := b.pl.have.companion.version

	other, c := r.change(rigState([]string{"10.244.1.1", "10.244.1.7"}))
	require.Len(t, other.draining, draining)
	since := time.Now().Add(-time.Minute)
	for dk := range other.draining {
		require.Zero(t, other.pl.have.servers[dk.svc].dests[dk.dest].Weight)
		other.draining[dk] = since
	}
	observation(t, other)
	require.Len(t, other.draining, draining)
	for dk, from := range other.draining {
		require.Equal(t, since, from, dk)
	}
	ok(other.Commit(t.Context(), c))(t)
	_, err := b.Settle(t.Context())
	require.ErrorIs(t, err, dataplane.ErrConflict)
	require.Equal(t, before.next(true), b.pl.have.companion.version.next(true))
	next := ok(other.Settle(t.Context()))(t)
	require.Zero(t, next)
	require.Empty(t, other.draining)
	v := ok(other.kernel.readVersion(t.Context()))(t)
	require.Equal(t, other.pl.have.companion.version, v)
	require.False(t, v.writing)
	require.NotContains(t, r.servers(), "TCP 10.96.0.10:80 -> 10.244.2.2:8080 0")
	r.apply(r.engine(), rigState([]string{"10.244.1.1", "10.244.1.7"}))
}
