package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestSwitchKeepsServicesInPlace(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	b.apply(t, services(3))
	b.Before(memory.CallCleanup, func(context.Context) error {
		requireHolds(t, next.Kernel(), services(3))
		return nil
	})

	r := ok(b.engine.Switch(t.Context(), next))(t)
	require.Equal(t, 3, r.Counts.Added)
	require.False(t, r.IsRepair())
	require.Zero(t, b.Kernel().Table().Len(), "nothing is left of the old")
	require.Equal(t, 1, b.Calls(memory.CallCleanup))

	commits := b.Calls(memory.CallCommit)
	ok(b.engine.Apply(t.Context(), services(4)))(t)
	requireHolds(t, next.Kernel(), services(4))
	require.Equal(t, commits, b.Calls(memory.CallCommit))

	ok(b.engine.Cleanup(t.Context()))(t)
	require.Zero(t, next.Kernel().Table().Len())
}

// The new backend holds the newest request, even if it was not applied before.
func TestSwitchHoldsTheNewestStateThatIsWanted(t *testing.T) {
	t.Parallel()
	before := newBench(nil)
	before.apply(t, services(3))
	b, next := newBench(before.Kernel()), memory.New(nil) // the program was restarted
	b.engine.Set(services(4))
	next.Fail(memory.CallCommit, 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Switch(t.Context(), next)), errRefused)
	requireHolds(t, b.Kernel(), services(3))
	require.True(t, b.status().Pending())
	r := ok(b.engine.Switch(t.Context(), next))(t)
	requireHolds(t, next.Kernel(), services(4))
	require.False(t, b.status().Pending())
	require.Equal(t, b.status().Applied, r.Revision)
	require.Equal(t, next.Kernel().Table().Len(), b.status().Held.Len())
}

// If no state is wanted, the services in the kernel must stay.
func TestSwitchLeavesServicesThatNobodyWants(t *testing.T) {
	t.Parallel()
	before := newBench(nil)
	before.apply(t, services(3))
	b, next := newBench(before.Kernel()), memory.New(nil)
	require.ErrorIs(t, errOf(b.engine.Switch(t.Context(), next)), dataplane.ErrRefused)
	requireHolds(t, b.Kernel(), services(3))
	ok(b.engine.ApplyChanges(t.Context(), planned(t, b, services(2))))(t)
	require.ErrorIs(t, errOf(b.engine.Switch(t.Context(), next)), dataplane.ErrRefused)
	requireHolds(t, b.Kernel(), services(2))
	b.engine.Resync()
	b.Fail(memory.CallObserve, 1, errRefused)
	_, err := b.engine.Switch(t.Context(), next)
	require.ErrorIs(t, err, errRefused, "nobody knows whether there are any")
	ok(b.engine.ForceSwitch(t.Context(), next))(t)
	require.Zero(t, b.Kernel().Table().Len())
	ok(b.engine.Apply(t.Context(), services(1)))(t)
	requireHolds(t, next.Kernel(), services(1))
}

// Switching between two backends of one instance is pointless, but nothing is lost.
func TestSwitchWithinAnInstanceKeepsItsServices(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(3))
	ok(b.engine.Switch(t.Context(), memory.New(b.Kernel())))(t)
	requireHolds(t, b.Kernel(), services(3))
	require.Error(t, errOf(b.engine.Switch(t.Context(), nil)))
}

// If the new backend fails, it leaves nothing, and the engine continues with the old backend.
func TestSwitchThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for call, cleanups := range map[memory.Call]int{memory.CallObserve: 0, memory.CallCommit: 1} {
		b, next := newBench(nil), memory.New(nil)
		b.apply(t, services(3))
		next.Fail(call, 1, errRefused)
		require.ErrorIs(t, errOf(b.engine.Switch(t.Context(), next)), errRefused)
		require.Equal(t, cleanups, next.Calls(memory.CallCleanup))
		requireHolds(t, b.Kernel(), services(3))
		require.False(t, b.apply(t, services(4)).Observed, "what it knew is still known")
	}
}

// A served service is removed only on request.
func TestSwitchNamesWhatIsRefused(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	odd := services(2).WithService(at81(2))
	b.apply(t, odd)
	next.Refuse(refusePort81)
	_, err := b.engine.Switch(t.Context(), next)
	require.ErrorIs(t, err, dataplane.ErrRefused)
	require.ErrorIs(t, err, backends.ErrUnsupported)
	require.ErrorContains(t, err, "service default/svc-2, which is served, would be lost: ")
	requireHolds(t, b.Kernel(), odd)
	require.Zero(t, next.Calls(memory.CallCommit)+next.Calls(memory.CallCleanup))
	var refused []dataplane.Event
	b.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
		if r, ok := ev.(dataplane.Refused); ok {
			refused = append(refused, r)
		}
	})

	r := ok(b.engine.ForceSwitch(t.Context(), next))(t)
	require.Len(t, r.Refused, 1)
	requireHolds(t, next.Kernel(), services(1))
	ok(b.engine.Apply(t.Context(), odd))(t)
	require.Len(t, refused, 1, "an event says so, once")

	b, next = newBench(nil), memory.New(nil)
	b.Refuse(refusePort81)
	ok(b.engine.Apply(t.Context(), odd))(t)
	next.Refuse(refusePort81)
	_, err = b.engine.Switch(t.Context(), next)
	require.NoError(t, err, "the old one does not serve it either")
	requireHolds(t, next.Kernel(), services(1))
}

// A former backend that cannot be cleaned up does not make a Switch fail. The cleanup is later
// work, which any call retries.
func TestAFormerBackendIsCleanedUpLater(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*dataplane.Engine, context.Context) error{
		"settle": func(e *dataplane.Engine, ctx context.Context) error {
			return errOf(e.Settle(ctx))
		},
		"finish": (*dataplane.Engine).Finish,
		"apply": func(e *dataplane.Engine, ctx context.Context) error {
			r, err := e.Apply(ctx, services(1))
			return errors.Join(err, r.Unsettled)
		},
		"switch": func(e *dataplane.Engine, ctx context.Context) error {
			r, err := e.Switch(ctx, memory.New(nil))
			return errors.Join(err, r.Unsettled)
		},
		"cleanup": func(e *dataplane.Engine, ctx context.Context) error {
			return errOf(e.Cleanup(ctx))
		},
	} {
		b, next := newBench(nil), memory.New(nil)
		b.apply(t, services(1))
		b.Fail(memory.CallCleanup, 2, errRefused)
		var told heard
		b.engine.Subscribe(told.hear)
		r := unsettled(b.engine.Switch(t.Context(), next))(t)
		text := "switched from memory to memory; clean up: memory: cleanup: " + errRefused.Error()
		require.EqualError(t, r.Unsettled, text)
		require.Equal(t, []string{"switched from memory to memory: 1 added, 0 changed, 0 removed",
			"settle 1 failed in settle: " + text}, told.take())
		requireHolds(t, next.Kernel(), services(1))
		requireHolds(t, b.Kernel(), services(1))
		require.False(t, b.status().Pending(), "the state is in the kernel")
		require.Equal(t, r.Unsettled, b.status().Unsettled)
		require.False(t, b.status().Settle.IsZero())

		require.ErrorIs(t, again(b.engine, t.Context()), errRefused, name)
		require.NoError(t, again(b.engine, t.Context()), name)
		require.Zero(t, b.Kernel().Table().Len(), name)
		require.NoError(t, b.status().Unsettled, name)
		require.Equal(t, 3, b.Calls(memory.CallCleanup), name)
	}
}

// Run also retries the cleanup, and an event says when it is done.
func TestRunCleansUpAFormerBackend(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never, RetryMin: time.Second})
		r.set(services(1))
		r.at(time.Second)
		r.Fail(memory.CallCleanup, 3, errRefused)
		var told heard
		r.engine.Subscribe(told.hear)
		unsettled(r.engine.Switch(t.Context(), memory.New(nil)))(t)
		r.at(time.Minute)
		require.Zero(t, r.Kernel().Table().Len())
		require.NoError(t, r.engine.Status().Unsettled)
		require.Equal(t, 4, r.Calls(memory.CallCleanup))
		require.Equal(t, "settled, next 0s", told[len(told)-1])
	})
}

// A former backend to which the engine returns is not cleaned up any more.
func TestSwitchBackToAFormerBackend(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	b.apply(t, services(1))
	b.Fail(memory.CallCleanup, 1, errRefused)
	unsettled(b.engine.Switch(t.Context(), next))(t)
	ok(b.engine.Switch(t.Context(), b.Backend))(t)
	requireHolds(t, b.Kernel(), services(1))
	require.Zero(t, next.Kernel().Table().Len())
	require.Equal(t, 1, b.Calls(memory.CallCleanup))
	ok(b.engine.Switch(t.Context(), b.Backend))(t)
	require.Equal(t, 1, b.Calls(memory.CallCleanup))
}

// If the former backend is of the same instance, and the state cannot be restored after its
// cleanup, restoring it is later work, too.
func TestAStateThatWentWithAFormerBackendComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(2))
	next := memory.New(b.Kernel())
	b.Before(memory.CallCleanup, func(context.Context) error {
		b.Before(memory.CallCleanup, nil)
		next.Fail(memory.CallCommit, 1, errRefused)
		return nil
	})

	require.ErrorIs(t, unsettled(b.engine.Switch(t.Context(), next))(t).Unsettled, errRefused)
	ok(b.engine.Settle(t.Context()))(t)
	requireHolds(t, b.Kernel(), services(2))
}

// Run watches the new backend, and stops watching the old backend.
func TestRunWatchesTheBackendItSwitchedTo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, old := newWatching()
		_, next := newWatching()
		r := runOn(t, b, dataplane.RunOptions{Resync: never, CheckInterval: never})
		r.set(services(1))
		r.at(time.Second)
		ok(r.engine.Switch(t.Context(), next))(t)
		r.at(2 * time.Second)
		next.events <- nil
		r.at(3 * time.Second)
		require.Equal(t, seconds(0, 2), r.applies)
		old.events <- nil
		r.at(time.Minute)
		require.Len(t, r.applies, 2)
	})
}

// The kernel may lack a family only for the new backend.
func TestSwitchKeepsBothFamilies(t *testing.T) {
	t.Parallel()
	six := service(2)
	six.ClusterIPs = []netip.Addr{netip.MustParseAddr("fd00::2")}
	for _, s := range []servicemodel.State{services(1), services(1).WithService(six)} {
		b, next := newBench(nil), memory.New(nil)
		b.apply(t, s)
		next.Refuse(refuseIPv6)
		if s.Len() > 1 {
			_, err := b.engine.Switch(t.Context(), next)
			require.ErrorIs(t, err, dataplane.ErrRefused)
			require.ErrorContains(t, err, "IPv6, which is served, would be lost: ")
			requireHolds(t, b.Kernel(), s)
			require.Zero(t, next.Calls(memory.CallCommit)+next.Calls(memory.CallCleanup))
		}

		change := b.engine.Switch
		if s.Len() > 1 {
			change = b.engine.ForceSwitch
		}
		ok(change(t.Context(), next))(t)
		require.Equal(t, 1, next.Kernel().Table().Len())
	}
}

// Before the Switch, Run waits for a retry. The Switch makes the retry pointless, so Run does not
// wait for it before it checks for changes by other programs.
func TestRunRepairsAfterASwitchFromABackendThatFailed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, next := run(t, dataplane.RunOptions{RetryMin: time.Hour, Resync: never}), memory.New(nil)
		r.Fail(memory.CallCommit, 1, errRefused)
		r.set(services(1))
		r.at(time.Second)
		require.True(t, r.status().Pending())
		ok(r.engine.Switch(t.Context(), next))(t)
		next.Kernel().Flush()
		r.at(2 * time.Second)
		requireHolds(t, next.Kernel(), services(1))
	})
}
