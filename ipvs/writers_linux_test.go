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
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// unlocked hides that a backend is a Locker and a Settler.
type unlocked struct{ dataplane.Backend }

// Writers that alternate without pause, each with a backend of its own: every apply succeeds, and
// what is there at the end is what one of them has applied last.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const writers, applies = 3, 40
	state := func(w, i int) servicemodel.State {
		return rigState([]string{fmt.Sprintf("10.244.%d.%d", w+1, i%7+1),
			fmt.Sprintf("10.244.%d.100", w+1)})
	}
	var all sync.WaitGroup
	var observed atomic.Int32
	for w := range writers {
		e := r.engine(Config{DrainLimit: -1})
		all.Go(func() {
			for i := range applies {
				res, err := e.Apply(context.Background(), state(w, i))
				if err != nil {
					t.Errorf("writer %d, apply %d: %v", w, i, err)
					return
				}
				if res.Observed {
					observed.Add(1)
				}
				time.Sleep(3 * time.Millisecond) // else the same one takes the lock again
			}
		})
	}
	all.Wait()
	require.Greater(t, observed.Load(), int32(writers*applies/4), "they alternate")
	var want [][]string
	for w := range writers {
		clean := newRig(t)
		clean.apply(clean.engine(Config{DrainLimit: -1}), state(w, applies-1))
		want = append(want, clean.state())
	}
	require.Contains(t, want, r.state())
}

// The same without the lock, which may be held by anybody: who was overtaken says so, and what is
// there after the last apply that succeeded is its state.
func TestWritersAreRightWithoutTheLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const writers, applies = 2, 60
	state := func(w, i int) servicemodel.State {
		return rigState([]string{fmt.Sprintf("10.244.%d.%d", w+1, i%7+1),
			fmt.Sprintf("10.244.%d.100", w+1)})
	}
	var conflicts atomic.Int32
	var all sync.WaitGroup
	for w := range writers {
		e := dataplane.New(unlocked{r.backend(Config{DrainLimit: -1})}, nil)
		all.Go(func() {
			for i := range applies {
				_, err := e.Apply(context.Background(), state(w, i))
				if errors.Is(err, dataplane.ErrConflict) {
					conflicts.Add(1)
				} else if err != nil {
					t.Errorf("writer %d, apply %d: %v", w, i, err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d applies gave up", conflicts.Load(), writers*applies)
	// One that gave up may have left something half done. The version says so, or what is there is
	// the state of one of the last applies that succeeded.
	b := r.backend()
	o, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, b.pl.have.companion.version.writing, len(o.Drift) > 0)
	if conflicts.Load() == 0 {
		var want [][]string
		for w := range writers {
			clean := newRig(t)
			clean.apply(clean.engine(Config{DrainLimit: -1}), state(w, applies-1))
			want = append(want, clean.state())
		}
		require.Contains(t, want, r.state())
	}
	final := state(0, 0)
	_, err = r.engine(Config{DrainLimit: -1}).Apply(t.Context(), final)
	require.NoError(t, err)
	clean := newRig(t)
	clean.apply(clean.engine(Config{DrainLimit: -1}), final)
	require.Equal(t, clean.state(), r.state())
}

// Two backends that have observed the same: the one that commits second has a conflict, whatever it
// changes, and whether the first has ended or was killed on the way; and neither update is lost.
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

		// The first is overtaken, and cannot end.
		_, err = r.engine().Apply(t.Context(), three)
		require.NoError(t, err)
		if n < len(steps) {
			require.ErrorIs(t, first.run(t.Context(), steps[len(steps)-1:]), dataplane.ErrConflict)
		}
		r.apply(r.engine(), three)
		r.apply(r.engine(), one)
	}
}

// Draining is a commit as well.
func TestDrainingIsAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, c := r.change(rigState([]string{"10.244.1.1", "10.244.2.2"}))
	_, err := b.Commit(t.Context(), c)
	require.NoError(t, err)
	b, c = r.change(rigState([]string{"10.244.1.1"}))
	_, err = b.Commit(t.Context(), c)
	require.NoError(t, err)
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
	_, err = other.Observe(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, other.draining, draining)
	for dk, from := range other.draining {
		require.Equal(t, since, from, dk)
	}
	_, err = other.Commit(t.Context(), c)
	require.NoError(t, err)
	_, err = b.Settle(t.Context())
	require.ErrorIs(t, err, dataplane.ErrConflict)
	require.Equal(t, before.next(true), b.pl.have.companion.version.next(true))
	next, err := other.Settle(t.Context())
	require.NoError(t, err)
	require.Zero(t, next)
	require.Empty(t, other.draining)
	v, err := other.kernel.readVersion(t.Context())
	require.NoError(t, err)
	require.Equal(t, other.pl.have.companion.version, v)
	require.False(t, v.writing)
	require.NotContains(t, r.servers(), "TCP 10.96.0.10:80 -> 10.244.2.2:8080 0")
	r.apply(r.engine(), rigState([]string{"10.244.1.1", "10.244.1.7"}))
}

// A busy neighbour commits without pause. Applies and adoptions succeed, and hardly any reads what
// is there because of it.
func TestABusyNeighbourIsNotInTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	state := func(i int) servicemodel.State {
		return rigState([]string{fmt.Sprintf("10.244.1.%d",
			i%7+1)})
	}
	e := r.engine(Config{DrainLimit: -1})
	r.apply(e, state(0))
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		b := r.backend(Config{Table: "neighbour"})
		for v := newVersion(); ctx.Err() == nil; {
			p := b.pl.newPlan()
			if !v.exists {
				p.stages[0][0].create, p.stages[0][0].sets = true, []*nft.Set{versionSet}
			}
			next := v.next(false)
			p.stages[0][0].replace(v, next)
			b.kernel.batch.Reset()
			p.encode(&b.kernel.batch, 0)
			if err := b.kernel.nf.Commit(context.Background(), &b.kernel.batch, 0); err != nil {
				t.Errorf("the neighbour: %v", err)
				return
			}
			v = next
			time.Sleep(time.Millisecond)
		}
	})
	observed := 0
	const applies = 200
	for i := range applies {
		res, err := e.Apply(t.Context(), state(i+1))
		require.NoError(t, err)
		require.Empty(t, res.Drift)
		if res.Observed {
			observed++
		}
		if i%10 == 0 {
			res, err := r.engine(Config{DrainLimit: -1}).Apply(t.Context(), state(i+1))
			require.NoError(t, err)
			require.Zero(t, res.Messages)
			require.Empty(t, res.Drift)
		}
	}
	require.Zero(t, observed)
	stop()
	busy.Wait()
}
