package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

var errTooMuch = errors.New("too much at once")

// guard approves commits that remove at most one frontend, and records the previews that it gets.
type guard struct{ asked []*dataplane.Preview }

func (g *guard) approve(_ context.Context, p *dataplane.Preview) error {
	g.asked = append(g.asked, p)
	if p.Changes.Counts().Removed > 1 {
		return errTooMuch
	}
	return nil
}

func guarded(k *memory.Kernel) (*bench, *guard) {
	g, m := &guard{}, memory.New(k)
	return &bench{m, dataplane.New(m, &dataplane.Config{Approve: g.approve})}, g
}

func TestCommitsAreApproved(t *testing.T) {
	t.Parallel()
	b, g := guarded(nil)
	b.apply(t, services(5))
	require.Len(t, g.asked, 1)
	require.Equal(t, 5, g.asked[0].Changes.Counts().Added)
	require.Contains(t, g.asked[0].Plan.String(), "svc-5")
	b.apply(t, services(5))
	require.Len(t, g.asked, 1, "nothing differs")

	_, err := b.engine.Apply(t.Context(), services(2))
	require.ErrorIs(t, err, dataplane.ErrNotApproved)
	require.ErrorIs(t, err, errTooMuch)
	requirePhase(t, dataplane.PhaseCheck, err)
	requireHolds(t, b.Kernel(), services(5))
	require.ErrorIs(t, b.engine.Status().Err, dataplane.ErrNotApproved)
	require.True(t, b.engine.Status().Pending())
	require.ErrorIs(t, b.engine.Wait(t.Context(), 3), dataplane.ErrNotApproved, "at once")
	require.Equal(t, 1, b.Calls(memory.CallCommit))
	require.Equal(t, 1, b.Calls(memory.CallObserve), "it is known still what the kernel holds")

	b.apply(t, services(4))
	b.Kernel().Lose(frontendKey(1))
	b.Kernel().AddDrift("a chain")
	b.engine.Resync()
	b.apply(t, services(4))
	last := g.asked[len(g.asked)-1]
	require.Equal(t, servicemodel.Counts{Added: 1}, last.Repaired)
	require.Equal(t, []string{"a chain"}, last.Drift)
}

func TestStoredChangesAndSwitchesAreApproved(t *testing.T) {
	t.Parallel()
	k := &memory.Kernel{}
	b, _ := guarded(k)
	b.apply(t, services(5))
	c := planned(t, newBench(k), services(2))
	require.ErrorIs(t, errOf(b.engine.ApplyChanges(t.Context(), c)), dataplane.ErrNotApproved)
	requireHolds(t, k, services(5))

	other := newBench(nil)
	other.apply(t, services(9)) // the switch would remove four services
	_, err := b.engine.Switch(t.Context(), memory.New(other.Kernel()))
	require.ErrorIs(t, err, dataplane.ErrNotApproved)
	requireHolds(t, k, services(5))
	requireHolds(t, other.Kernel(), services(9))
	require.Equal(t, 1, b.apply(t, services(6)).Counts.Added, "the engine stays with its backend")
	b.engine.Set(services(1))
	_, err = b.engine.Switch(t.Context(), memory.New(k))
	require.ErrorIs(t, err, dataplane.ErrNotApproved)
	requireHolds(t, k, services(6))
}

// Run asks again when a program sets a new state, when another program changes the kernel, and
// after RetryMax.
func TestRunAsksAgainWhatWasNotApproved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, g := guarded(nil)
		r := runOn(t, b, dataplane.RunOptions{Resync: -1})
		asked := func(after time.Duration, n int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			require.Len(t, g.asked, n)
		}

		r.engine.Set(services(5))
		asked(time.Second, 1)
		r.engine.Set(services(1))
		asked(29*time.Second, 2)
		require.NotZero(t, r.engine.Status().PendingSince)
		asked(10*time.Second, 3) // after RetryMax and at most a quarter more
		r.engine.Set(services(2))
		asked(time.Millisecond, 4)
		requireHolds(t, b.Kernel(), services(5))
		b.Kernel().Flush()
		asked(time.Second, 5)
		requireHolds(t, b.Kernel(), services(2)) // nothing is removed from an empty kernel
		r.engine.Set(services(1))
		asked(time.Second, 6)
		requireHolds(t, b.Kernel(), services(1))
		require.Zero(t, r.engine.Status().PendingSince)
		r.cancel(nil)
		<-r.ended
	})
}

// While a repair is not approved, a neighbour that commits all the time does not make Run ask
// again, or read all the time. New damage makes Run ask again.
func TestNeighboursDoNotMakeRunAskAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		asked, deny := 0, error(nil)
		b := benchWith(dataplane.Config{Approve: func(context.Context, *dataplane.Preview) error {
			asked++
			return deny
		}})
		r := runOn(t, b, dataplane.RunOptions{Resync: never, RetryMax: time.Hour})
		r.set(services(2))
		r.at(time.Second)
		deny = errRefused
		for i := range 600 {
			switch i {
			case 0:
				r.Kernel().Lose(frontendKey(1))
			case 300:
				r.Kernel().Lose(frontendKey(2))
			case 450:
				r.Kernel().AddDrift("a chain")
			}

			r.Kernel().Touch()
			r.at(time.Second + time.Duration(i)*100*time.Millisecond)
		}

		require.Equal(t, 4, asked)
		require.Less(t, r.Calls(memory.CallObserve), 80, "such readings are rationed")
	})
}

func TestSpansOfCallsAndTheirPhases(t *testing.T) {
	t.Parallel()
	type key struct{}
	var got []string
	m := memory.New(nil)
	flows := &told{}
	e := dataplane.New(m, &dataplane.Config{Flows: flows, Span: func(ctx context.Context,
		name string) (context.Context, func(error)) {
		parent, _ := ctx.Value(key{}).(string)
		name = parent + "/" + name
		got = append(got, name)
		return context.WithValue(ctx, key{}, name), func(err error) {
			got = append(got, fmt.Sprintf("end %s %v", name, err))
		}
	}})
	requireSpans := func(want ...string) {
		t.Helper()
		require.Equal(t, want, got)
		got = nil
	}

	ok(e.Apply(t.Context(), services(1)))(t)
	requireSpans("/apply", "/apply/lock", "end /apply/lock <nil>", "/apply/resolve",
		"end /apply/resolve <nil>", "/apply/observe", "end /apply/observe <nil>", "/apply/check",
		"end /apply/check <nil>", "/apply/commit", "end /apply/commit <nil>", "/apply/settle",
		"end /apply/settle <nil>", "end /apply <nil>")
	m.Fail(memory.CallObserve, 1, errTooMuch)
	require.ErrorIs(t, errOf(e.Observe(t.Context())), errTooMuch)
	requireSpans("/observe", "/observe/observe",
		"end /observe/observe memory: observe: too much at once",
		"end /observe memory: observe: too much at once")
	ok(e.Plan(t.Context(), services(2)))(t)
	require.Equal(t, "end /plan <nil>", got[len(got)-1])
	got = nil
	ok(e.Cleanup(t.Context()))(t)
	requireSpans("/cleanup", "/cleanup/cleanup", "end /cleanup/cleanup <nil>",
		"end /cleanup <nil>")
	ok(e.Settle(t.Context()))(t)
	requireSpans("/settle", "/settle/settle", "end /settle/settle <nil>", "end /settle <nil>")

	// Later work that fails is an error of its phase, and of Settle.
	flows.err = errTooMuch
	unsettled(e.Apply(t.Context(), services(1)))(t)
	require.Equal(t, []string{"end /apply/settle too much at once", "end /apply <nil>"},
		got[len(got)-2:])
	require.ErrorIs(t, errOf(e.Settle(t.Context())), errTooMuch)
	require.Equal(t, []string{"end /settle/settle too much at once",
		"end /settle too much at once"}, got[len(got)-2:])
}
