package dataplane_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/servicemodel"
)

// heard is an observer that records each event in a few words.
type heard []string

func (h *heard) hear(_ context.Context, ev dataplane.Event) { *h = append(*h, describe(ev)) }

// take returns the events since the last call.
func (h *heard) take() []string {
	l := *h
	*h = nil
	return l
}

func describe(ev dataplane.Event) string {
	switch ev := ev.(type) {
	case dataplane.Applied:
		return fmt.Sprintf("applied %d: %v", ev.Revision, ev.Counts)
	case dataplane.Refused:
		return "refused " + ev.Service.String()
	case dataplane.ClaimConflict:
		return "conflict " + ev.Conflict.String()
	case dataplane.Repaired:
		return fmt.Sprintf("repaired %v %v", ev.Repaired, ev.Drift)
	case dataplane.WriteConflict:
		return fmt.Sprintf("write conflict %s %d", ev.Doing, ev.Try)
	case dataplane.Settled:
		return fmt.Sprintf("settled, next %v", ev.Next)
	case dataplane.Failed:
		return fmt.Sprintf("%s %d failed in %v: %v", ev.Doing, ev.Revision, ev.Phase, ev.Err)
	case dataplane.WatchFailed:
		return fmt.Sprintf("watch failed: %v", ev.Err)
	case dataplane.Switched:
		return fmt.Sprintf("switched from %s to %s: %v", ev.From, ev.To, ev.Counts)
	case dataplane.CleanedUp:
		return fmt.Sprintf("cleaned up %s, %d messages", ev.Backend, ev.Stats.Messages)
	}

	return fmt.Sprintf("%T", ev)
}

func TestObserversAreToldWhatAnEngineDoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, w := newWatching()
		var first, second heard
		b.engine.Subscribe(first.hear)
		unsubscribe := b.engine.Subscribe(second.hear)
		r := runOn(t, b, dataplane.RunOptions{Resync: never, RetryMin: time.Second})
		told := func(want ...string) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, first.take())
		}

		r.set(services(1))
		told("applied 1: 1 added, 0 changed, 0 removed")
		thief := service(2)
		thief.ClusterIPs = service(1).ClusterIPs
		b.Refuse(refusePort81)
		bad := services(1).WithService(thief).WithService(at81(3))
		r.set(bad)
		told("refused default/svc-3", "conflict 10.96.0.1:80/tcp: default/svc-1:http wins over "+
			"default/svc-2:http", "applied 2: 0 added, 0 changed, 0 removed")
		r.set(bad)
		told("applied 3: 0 added, 0 changed, 0 removed")
		b.Kernel().AddDrift("a chain of nobody")
		r.at(time.Second)
		told("repaired 0 added, 0 changed, 0 removed [a chain of nobody]",
			"applied 3: 0 added, 0 changed, 0 removed")
		b.Fail(memory.CallCommit, 2, kernelerr.ErrConflict)
		r.set(services(2))
		r.at(2 * time.Second)
		told("write conflict apply 1", "write conflict apply 2",
			"applied 4: 1 added, 0 changed, 0 removed")
		b.Fail(memory.CallCommit, 1, errRefused)
		r.set(services(1))
		told("apply 5 failed in commit: memory: commit: " + errRefused.Error())
		require.NoError(t, b.engine.Wait(t.Context(), 5))
		told("applied 5: 0 added, 0 changed, 1 removed")
		w.events <- errRefused
		told("watch failed: watch for changes of the node: " + errRefused.Error())
		ok(b.engine.Switch(t.Context(), memory.New(nil)))(t)
		told("switched from memory to memory: 1 added, 0 changed, 0 removed", "settled, next 0s")
		require.Len(t, second.take(), 15)
		unsubscribe()
		b.engine.Set(services(3))
		told("applied 6: 2 added, 0 changed, 0 removed")
		require.Empty(t, second)
	})
}

// An observer may read everything, set a new state, and unsubscribe itself.
func TestAnObserverMayCallTheEngine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never})
		var status dataplane.Status
		var end func()
		end = r.engine.Subscribe(func(context.Context, dataplane.Event) {
			status = r.engine.Status()
			r.engine.Resync()
			r.engine.Set(services(2))
			end()
		})
		r.set(services(1))
		r.at(time.Second)
		require.Equal(t, dataplane.Revision(1), status.Applied)
		require.True(t, status.Succeeded.Equal(r.start))
		requireHolds(t, r.Kernel(), services(2))
		require.Len(t, r.applies, 2)
	})
}

// Observers also learn of change sets, cleanups and failures. A failure has the time of each phase.
func TestObserversAreToldOfChangesCleanupsAndTheTimeOfFailures(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := memory.New(nil)
		e := dataplane.New(m, nil)
		preview := ok(e.Plan(t.Context(), services(1)))(t)
		stored := ok(json.Marshal(preview.Changes))(t)
		var changes servicemodel.ChangeSet
		require.NoError(t, json.Unmarshal(stored, &changes))
		var told heard
		var failed dataplane.Failed
		e.Subscribe(func(ctx context.Context, ev dataplane.Event) {
			told.hear(ctx, ev)
			if f, ok := ev.(dataplane.Failed); ok {
				failed = f
			}
		})

		time.Sleep(time.Second)
		ok(e.ApplyChanges(t.Context(), &changes))(t)
		require.Equal(t, []string{"applied 1: 1 added, 0 changed, 0 removed"}, told.take())
		status := e.Status()
		require.Equal(t, 1, status.Totals.Applies)
		require.Equal(t, time.Now(), status.Asked)
		m.Before(memory.CallCommit, func(context.Context) error {
			time.Sleep(time.Second)
			return errRefused
		})

		require.Error(t, errOf(e.Apply(t.Context(), services(2))))
		require.Len(t, told.take(), 1)
		require.Equal(t, "memory", failed.Backend)
		require.Equal(t, dataplane.Phases{dataplane.PhaseCommit: time.Second}, failed.Phases)
		ok(e.Cleanup(t.Context()))(t)
		require.Equal(t, []string{"cleaned up memory, 6 messages"}, told.take())
	})
}

// An unsubscribed observer costs nothing: an apply that finds nothing to do allocates as much as
// before the subscription.
func TestEventsCostNothingIfNobodyListens(t *testing.T) {
	e, s := dataplane.New(costless{}, nil), services(3)
	allocs := func() float64 {
		return testing.AllocsPerRun(100, func() {
			if _, err := e.Apply(context.Background(), s); err != nil {
				t.Fatal(err)
			}
		})
	}

	before := allocs()
	n := 0
	unsubscribe := e.Subscribe(func(context.Context, dataplane.Event) { n++ })
	allocs()
	require.Positive(t, n)
	unsubscribe()
	require.InDelta(t, before, allocs(), 0.5)
}

// slow is a backend whose calls take some seconds each.
func slow() *settling {
	b := &settling{Backend: memory.New(nil)}
	for call, d := range map[memory.Call]time.Duration{
		memory.CallObserve: 2, memory.CallCheck: 3, memory.CallCommit: 4,
	} {
		b.Before(call, func(context.Context) error { time.Sleep(d * time.Second); return nil })
	}

	return b
}

// partStory is a story of changes to parts, with the name of each event of each change.
func partStory(t *testing.T, b *settling, p *dataplane.Parts) (story []func() []string) {
	a := published("a", 7, 80, 81)
	do := func(f func() error, ok bool, events ...string) {
		story = append(story, func() []string {
			require.Equal(t, ok, f() == nil)
			return events
		})
	}

	apply := func(owner string, s servicemodel.State) func() error {
		return func() error {
			_, err := p.Apply(t.Context(), owner, s)
			return err
		}
	}

	do(apply("a", a), true, "Applied")
	do(apply("a", a), true, "Applied")
	do(apply("b", published("b", 8, 81).WithService(&servicemodel.Service{})), false, "PartRefused")
	do(apply("b", published("b", 8, 81)), false, "PartRefused")
	do(func() error {
		b.Kernel().AddDrift("a chain of nobody")
		b.Fail(memory.CallCommit, 1, kernelerr.ErrConflict)
		return apply("b", published("b", 8, 90))()
	}, true, "WriteConflict", "Repaired", "Applied")

	do(func() error {
		b.Fail(memory.CallCommit, 1, errRefused)
		_, err := p.Remove(t.Context(), "a", "b")
		return err
	}, false, "Failed")

	do(func() error {
		b.Fail(memory.CallObserve, 1, errRefused)
		_, err := p.Keep(t.Context(), func(string) bool { return true })
		return err
	}, false, "Failed")

	do(func() error {
		b.err = errRefused
		_, err := p.Remove(t.Context(), "a")
		return err
	}, true, "Applied", "Failed")

	do(func() error { _, err := p.Settle(t.Context()); return err }, false, "Failed")
	do(func() error {
		b.err = nil
		b.due(time.Hour)
		_, err := p.Settle(t.Context())
		return err
	}, true, "Settled")

	do(func() error {
		_, err := p.Keep(t.Context(), func(string) bool { return false })
		return err
	}, true, "Applied")

	return story
}

// Observers of parts learn the outcome of each call, the owners, the failed phase, and the time of
// each phase.
func TestObserversAreToldOfParts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := slow()
		p := dataplane.NewParts(b, nil)
		var names []string
		var text []byte
		unsubscribe := p.Subscribe(func(_ context.Context, ev dataplane.Event) {
			line := ok(dataplane.MarshalEvent(ev))(t)
			names, text = append(names, eventName(t, line)), append(append(text, line...), '\n')
		})
		for _, do := range partStory(t, b, p) {
			names = nil
			require.Equal(t, do(), names)
		}

		golden.File(t, filepath.Join("testdata", "part-events.json"), string(text))
		unsubscribe()
		names = nil
		ok(p.Remove(t.Context(), "nobody"))(t)
		require.Empty(t, names)
	})
}

// The phases of a change of parts have the times that the backend took. An error names its phase.
func TestPartsSayWhereTheirTimeWent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := slow()
		p := dataplane.NewParts(b, nil)
		r := ok(p.Apply(t.Context(), "a", published("a", 7, 80)))(t)
		require.Equal(t, dataplane.Phases{
			dataplane.PhaseObserve: 2 * time.Second,
			dataplane.PhaseCheck:   3 * time.Second,
			dataplane.PhaseCommit:  4 * time.Second,
		}, r.Phases)
		require.Equal(t, 9*time.Second, r.Duration)
		require.Equal(t, []string{"a"}, r.Owners)

		b.Fail(memory.CallCommit, 1, errRefused)
		_, err := p.Remove(t.Context(), "a")
		requirePhase(t, dataplane.PhaseCommit, err)
		b.Fail(memory.CallObserve, 1, errRefused)
		_, err = p.Plan(t.Context(), "a", published("a", 8, 80))
		requirePhase(t, dataplane.PhaseObserve, err)
	})
}
