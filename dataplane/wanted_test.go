package dataplane_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// Set, Status, Resync and Subscribe return during an apply. Calls with a context end when the
// context ends.
func TestNothingWaitsForAnApplyLongerThanItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		hang := make(chan struct{})
		b.Before(memory.CallCommit, func(context.Context) error { <-hang; return nil })
		applied := make(chan error, 1)
		go func() {
			_, err := b.engine.Apply(t.Context(), services(1))
			applied <- err
		}()

		synctest.Wait()
		start := time.Now()
		require.Equal(t, dataplane.Revision(2), b.engine.Set(services(2)))
		b.engine.Resync()
		b.engine.Subscribe(func(context.Context, dataplane.Event) {})()
		s := b.engine.Status()
		require.Equal(t, dataplane.Revision(2), s.Wanted)
		require.True(t, s.Pending())
		require.Nil(t, s.Held)
		require.Zero(t, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for name, call := range map[string]func() error{
			"apply":   func() error { _, err := b.engine.Apply(ctx, services(3)); return err },
			"plan":    func() error { _, err := b.engine.Plan(ctx, services(3)); return err },
			"observe": func() error { _, err := b.engine.Observe(ctx); return err },
			"settle":  func() error { _, err := b.engine.Settle(ctx); return err },
			"cleanup": func() error { _, err := b.engine.Cleanup(ctx); return err },
			"switch":  func() error { _, err := b.engine.Switch(ctx, costless{}); return err },
			"wait":    func() error { return b.engine.Wait(ctx, 2) },
			"finish":  func() error { return b.engine.Finish(ctx) },
			"run":     func() error { return b.engine.Run(ctx, nil) },
		} {
			err := call()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
		}

		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, dataplane.Revision(2), b.engine.Status().Wanted,
			"what did not get its turn has not happened")
		close(hang)
		require.NoError(t, <-applied)
	})
}

// Status is complete whenever a request counts as applied, even before the call returns, because
// events are emitted and Wait returns at that time.
func TestAnAppliedRequestIsShownWithItsTable(t *testing.T) {
	ctx := t.Context()
	b := newBench(nil)
	seen := 0
	b.engine.Subscribe(func(_ context.Context, _ dataplane.Event) {
		s := b.engine.Status()
		if s.Pending() {
			return
		}
		seen++
		require.NotNil(t, s.Held)
		require.Equal(t, s.State.Len(), s.Held.Len())
	})

	ok(b.engine.Apply(ctx, services(2)))(t)
	ok(b.engine.Apply(ctx, services(1)))(t)
	ok(b.engine.Switch(ctx, memory.New(nil)))(t)
	require.Equal(t, 3, seen)
}

func TestASecondRunIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{})
		synctest.Wait()
		require.True(t, r.engine.Status().Running)
		require.ErrorIs(t, r.engine.Run(t.Context(), nil), dataplane.ErrRunning)
		r.stop()
		require.False(t, r.engine.Status().Running)

		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { r.ended <- r.engine.Run(ctx, nil) }()
		require.NoError(t, r.engine.Wait(t.Context(), r.engine.Set(services(1))))
		requireHolds(t, r.Kernel(), services(1))
		cancel(errors.New("terminated"))
		require.ErrorIs(t, <-r.ended, context.Canceled)
	})
}

func TestWaitTellsWhyAStateIsNotInTheKernel(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := benchWith(dataplane.Config{Strict: true})
		r := runOn(t, b, dataplane.RunOptions{RetryMin: time.Second, Resync: never})
		require.NoError(t, r.engine.Wait(t.Context(), 0))
		require.ErrorContains(t, r.engine.Wait(t.Context(), 1), "revision 1: there are only 0")

		r.Fail(memory.CallCommit, 2, errRefused)
		first := r.engine.Set(services(1))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := r.engine.Wait(ctx, first)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errRefused)
		require.NoError(t, r.engine.Wait(t.Context(), first), "it is tried again")
		require.Equal(t, 3, r.Calls(memory.CallCommit))

		second := r.engine.Set(services(2).WithService(invalid(1)))
		err = r.engine.Wait(t.Context(), second)
		require.ErrorIs(t, err, dataplane.ErrRefused)
		var field *servicemodel.FieldError
		require.ErrorAs(t, err, &field)
		third := r.engine.Set(services(3))
		require.NoError(t, r.engine.Wait(t.Context(), third))
		require.NoError(t, r.engine.Wait(t.Context(), second), "a newer one is in the kernel")
	})
}

func TestStatusTellsWhatBecameOfAState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never, RetryMin: time.Minute})
		r.Refuse(refusePort81)
		require.Equal(t, dataplane.Status{Backend: "memory"}, r.engine.Status())
		state := services(3).WithService(at81(2))
		r.set(state)
		r.at(time.Second)
		s := r.engine.Status()
		require.Equal(t, state, s.State)
		require.Equal(t, dataplane.Revision(1), s.Applied)
		require.True(t, s.Held.Equal(r.Kernel().Table()))
		require.Len(t, s.Refused, 1)
		require.Equal(t, r.start, s.Succeeded)
		require.Zero(t, s.Failed)
		require.Equal(t, dataplane.Totals{Applies: 1}, s.Totals)

		r.Fail(memory.CallCommit, 1, errRefused)
		r.set(services(4))
		r.at(2 * time.Second)
		s = r.engine.Status()
		require.True(t, s.Pending())
		require.Nil(t, s.Held, "it is not known any more")
		require.Equal(t, r.start, s.Succeeded)
		require.Equal(t, r.start.Add(time.Second), s.Failed)
		require.ErrorIs(t, s.Err, errRefused)
		requirePhase(t, dataplane.PhaseCommit, s.Err)
		require.Equal(t, 1, s.Totals.Failures)

		ok(r.engine.Cleanup(t.Context()))(t)
		s = r.engine.Status()
		require.False(t, s.Pending())
		require.Empty(t, s.Refused)
		require.Zero(t, s.State.Len())
		require.ErrorIs(t, s.Err, errRefused, "it is when that was that tells its age")
	})
}

// The error of each phase names the phase.
func TestErrorsTellThePhase(t *testing.T) {
	t.Parallel()
	for phase, prepare := range map[dataplane.Phase]func(*turns){
		dataplane.PhaseLock:    func(b *turns) { b.err = errRefused },
		dataplane.PhaseObserve: func(b *turns) { b.Fail(memory.CallObserve, 1, errRefused) },
		dataplane.PhaseCheck:   func(b *turns) { b.Fail(memory.CallCheck, 1, errRefused) },
		dataplane.PhaseCommit:  func(b *turns) { b.Fail(memory.CallCommit, 1, errRefused) },
	} {
		b := &turns{settling: &settling{Backend: memory.New(nil)}}
		prepare(b)
		_, err := dataplane.New(b, nil).Apply(t.Context(), services(1))
		requirePhase(t, phase, err)
		require.ErrorIs(t, err, errRefused)
		require.Equal(t, phase == dataplane.PhaseCheck, errors.Is(err, dataplane.ErrRefused))
	}

	strict := benchWith(dataplane.Config{Strict: true})
	_, err := strict.engine.Apply(t.Context(), services(1).WithService(invalid(1)))
	requirePhase(t, dataplane.PhaseResolve, err)
	require.Equal(t, "resolve", dataplane.PhaseResolve.String())
	require.Equal(t, "phase 99", dataplane.Phase(99).String())
}
