package dataplane_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestRunRepairsWhatOthersDid(t *testing.T) {
	for name, c := range map[string]struct {
		damage   func(k *memory.Kernel)
		repaired servicemodel.Counts
		drift    []string
	}{
		"everything is flushed": {func(k *memory.Kernel) { k.Flush() },
			servicemodel.Counts{Added: 2}, nil},
		"one service is lost": {func(k *memory.Kernel) { k.Lose(frontendKey(2)) },
			servicemodel.Counts{Added: 1}, nil},
		"there is something foreign": {func(k *memory.Kernel) { k.AddDrift("a chain") },
			servicemodel.Counts{}, []string{"a chain"}},
	} {
		bubble(t, name, func(t *testing.T) {
			r := run(t, dataplane.RunOptions{Resync: never})
			r.set(services(2))
			r.at(time.Minute)
			require.Len(t, r.applies, 1, "nobody is told of looks that find nothing")
			r.requireCalls(t, 1, 1)
			c.damage(r.Kernel())
			r.at(time.Minute + 250*time.Millisecond)
			require.Len(t, r.applies, 2)
			requireHolds(t, r.Kernel(), services(2))
			require.Empty(t, r.Kernel().Drift())
			require.True(t, r.results[1].IsRepair())
			require.Equal(t, c.repaired, r.results[1].Repaired)
			require.Equal(t, c.drift, r.results[1].Drift)
			require.Zero(t, r.results[1].Counts, "nothing is wanted that was not before")
			require.Equal(t, dataplane.Totals{Applies: 2, Repairs: 1, Repaired: c.repaired},
				r.engine.Status().Totals)
			r.at(time.Hour)
			require.Len(t, r.applies, 2)
		})
	}
}

// A change that finds damage counts as a change and as a repair.
func TestAChangeAndARepairAreToldApart(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	require.False(t, b.apply(t, services(3)).IsRepair(), "it is the first")
	b.Kernel().Flush()
	r := b.apply(t, services(4).WithoutService(serviceName(1)))
	require.Equal(t, servicemodel.Counts{Added: 1, Removed: 1}, r.Counts)
	require.Equal(t, servicemodel.Counts{Added: 3}, r.Repaired)
	require.Equal(t, servicemodel.Counts{Added: 3}, r.Changes.Counts())
	require.False(t, b.apply(t, services(4)).IsRepair())
}

// The leftovers of our own failed commit do not count as damage by other programs.
func TestWhatAFailedApplyLeftIsNoRepair(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	b.Fail(memory.CallCommit, 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(3))), errRefused)
	r := b.apply(t, services(3))
	require.False(t, r.IsRepair())
	require.Equal(t, servicemodel.Counts{Added: 2}, r.Counts)
	require.Equal(t, dataplane.Totals{Applies: 2, Failures: 1}, b.engine.Status().Totals)
	b.Kernel().Flush()
	require.True(t, b.apply(t, services(3)).IsRepair())
}

// Whatever invalidates the engine's knowledge, Run continues to check, and reads the kernel.
func TestRunLooksWhateverMadeItsKnowledgeVoid(t *testing.T) {
	for name, forget := range map[string]func(*testing.T, *runner){
		"a resync": func(_ *testing.T, r *runner) { r.engine.Resync() },
		"an observation that failed": func(t *testing.T, r *runner) {
			r.Fail(memory.CallObserve, 1, errRefused)
			require.ErrorIs(t, errOf(r.engine.Observe(t.Context())), errRefused)
		},
		"a plan that others interrupted": func(t *testing.T, r *runner) {
			r.engine.Resync()
			r.Fail(memory.CallObserve, 16, kernelerr.ErrConflict)
			_, err := r.engine.Plan(t.Context(), services(3))
			require.ErrorIs(t, err, kernelerr.ErrConflict)
		},
		"changes of another kernel": func(t *testing.T, r *runner) {
			_, err := r.engine.ApplyChanges(t.Context(), planned(t, newBench(nil), services(4)))
			require.ErrorIs(t, err, servicemodel.ErrOtherTable)
		},
		"changes that failed": func(t *testing.T, r *runner) {
			c := planned(t, r.bench, services(4))
			r.Fail(memory.CallCommit, 1, errRefused)
			require.ErrorIs(t, errOf(r.engine.ApplyChanges(t.Context(), c)), errRefused)
		},
		"a switch that failed": func(t *testing.T, r *runner) {
			next := memory.New(nil)
			next.Fail(memory.CallCommit, 1, errRefused)
			require.ErrorIs(t, errOf(r.engine.Switch(t.Context(), next)), errRefused)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			r := run(t, dataplane.RunOptions{Resync: never})
			r.set(services(2))
			r.at(time.Second)
			forget(t, r)
			require.False(t, r.status().Pending(), "what is wanted is what it was")
			r.at(10 * time.Second)
			require.Equal(t, 2, r.status().Held.Len())
			require.Zero(t, r.status().Totals.Repairs)
			r.Kernel().Flush()
			r.at(11 * time.Second)
			requireHolds(t, r.Kernel(), services(2))
			require.Equal(t, 1, r.status().Totals.Repairs)
		})
	}
}

// A program that undoes each repair at once neither keeps a CPU busy nor fills the log: repairs
// then happen once a second, or take a tenth of the time. When the program ends, the last repair
// stays.
func TestRunDoesNotFightWithoutEnd(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		most  int // repairs in the first minute
	}{
		"repairs that are short": {0, 5 + 60},
		"repairs that take long": {time.Second, 5 + 6},
	} {
		bubble(t, name, func(t *testing.T) {
			b, log := newLogging()
			r := runOn(t, b, dataplane.RunOptions{Resync: never})
			r.set(services(1))
			r.at(0)
			r.Before(memory.CallCommit, func(ctx context.Context) error {
				time.Sleep(c.takes)
				return nil
			})

			for i := range 60 * 10 {
				if r.Kernel().Table().Len() > 0 {
					r.Kernel().Flush()
				}
				r.at(time.Duration(i+1) * 100 * time.Millisecond)
			}

			repairs := len(r.applies) - 1
			require.LessOrEqual(t, repairs, c.most)
			require.Greater(t, repairs, c.most/2)
			r.at(2 * time.Minute)
			requireHolds(t, r.Kernel(), services(1))
			require.Equal(t, len(r.applies)-1, b.engine.Status().Totals.Repairs)
			require.Contains(t, log.String(), "another program keeps undoing repairs")
			require.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("keeps undoing")), repairs)
		})
	}
}

// An apply of a new state may also be a repair, and may take long. The next damage, an hour later,
// is repaired at once, because no program keeps undoing repairs.
func TestRepairsOfLongAgoDelayNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never})
		r.commitsTake(3 * time.Second)
		r.set(services(1))
		r.at(time.Minute)
		r.Kernel().Flush()
		r.set(services(2))
		r.at(time.Hour)
		require.True(t, r.results[1].IsRepair())
		r.Kernel().Flush()
		r.at(time.Hour + 4*time.Second)
		requireHolds(t, r.Kernel(), services(2))
	})
}

// witness is a backend that can tell which program changes its objects.
type witness struct {
	*memory.Backend
	testify func(context.Context) (backends.Program, error)
}

func (w *witness) Blame(ctx context.Context) (backends.Program, error) {
	return w.testify(ctx)
}

// Run asks who undoes repairs when they begin to wait, one question at a time. It reports the
// answer by an event and in the log. If no program was found, Run reports nothing. If the kernel
// cannot be asked, Run reports that.
func TestWhoUndoesRepairsIsTold(t *testing.T) {
	vandal := backends.Program{Name: "vandal", Thread: 7}
	for name, c := range map[string]struct {
		testify func(context.Context) (backends.Program, error)
		events  []dataplane.Event
		log     string
	}{
		"the kernel tells": {func(context.Context) (backends.Program, error) {
			return vandal, nil
		}, []dataplane.Event{dataplane.RepairUndone{Backend: "memory", Program: vandal}},
			"msg=\"repair undone\" backend=memory program=vandal thread=7"},
		"it does not": {func(ctx context.Context) (backends.Program, error) {
			<-ctx.Done()
			return backends.Program{}, ctx.Err()
		}, nil, "keeps undoing"},
		"it cannot be asked": {func(context.Context) (backends.Program, error) {
			return backends.Program{}, errRefused
		}, nil, "find out who undoes repairs: operation not permitted"},
	} {
		bubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			m := memory.New(nil)
			w := &witness{Backend: m, testify: c.testify}
			e := dataplane.New(w, &dataplane.Config{
				Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var events []dataplane.Event
			e.Subscribe(func(_ context.Context, ev dataplane.Event) {
				if ev, ok := ev.(dataplane.RepairUndone); ok {
					events = append(events, ev)
				}
			})

			r := runOn(t, &bench{m, e}, dataplane.RunOptions{Resync: never})
			r.set(services(1))
			r.at(0)
			for i := range 20 {
				r.Kernel().Flush()
				r.at(time.Duration(i+1) * 100 * time.Millisecond)
			}

			r.at(time.Hour)
			require.Subset(t, events, c.events)
			require.Equal(t, len(c.events) > 0, len(events) > 0)
			require.Contains(t, log.String(), c.log)
		})
	}
}
