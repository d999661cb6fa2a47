package dataplane_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
)

func TestSwitchKeepsServicesInPlace(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	b.apply(t, services(3))
	b.Before(memory.CallCleanup, func(context.Context) error {
		requireHolds(t, next.Kernel(), services(3))
		return nil
	})
	r, err := b.engine.Switch(t.Context(), next)
	require.NoError(t, err)
	require.Equal(t, 3, r.Added)
	require.False(t, r.IsRepair())
	require.Zero(t, b.Kernel().Table().Len(), "nothing is left of the old")
	require.Equal(t, 1, b.Calls(memory.CallCleanup))

	commits := b.Calls(memory.CallCommit)
	_, err = b.engine.Apply(t.Context(), services(4))
	require.NoError(t, err)
	requireHolds(t, next.Kernel(), services(4))
	require.Equal(t, commits, b.Calls(memory.CallCommit))

	_, err = b.engine.Cleanup(t.Context())
	require.NoError(t, err)
	require.Zero(t, next.Kernel().Table().Len())
}

func TestSwitchBeforeAnythingWasApplied(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), newBench(nil)
	next.apply(t, services(2)) // another program's, or that of a run before
	_, err := b.engine.Switch(t.Context(), next.Backend)
	require.NoError(t, err)
	requireHolds(t, next.Kernel(), services(2))
	_, err = b.engine.Apply(t.Context(), services(3))
	require.NoError(t, err)
	requireHolds(t, next.Kernel(), services(3))
}

// If the new backend fails, nothing of it is left, and the engine goes on with the old one.
func TestSwitchThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for _, call := range []memory.Call{memory.CallObserve,
		memory.CallCommit} {
		b, next := newBench(nil), memory.New(nil)
		b.apply(t, services(3))
		next.Fail(call, 1, errRefused)
		_, err := b.engine.Switch(t.Context(), next)
		require.ErrorIs(t, err, errRefused)
		require.Equal(t, 1, next.Calls(memory.CallCleanup))
		requireHolds(t, b.Kernel(), services(3))
		require.False(t, b.apply(t, services(4)).Observed, "what it knew is still known")
	}
}

// What the new backend cannot express is refused, as by any apply.
func TestSwitchNamesWhatIsRefused(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	odd := services(2)
	svc := *odd.Service(serviceName(2))
	svc.Ports = append(svc.Ports[:0:0], svc.Ports...)
	svc.Ports[0].Port = 81
	odd = odd.WithService(&svc)
	b.apply(t, odd)
	next.Refuse(refusePort81)
	r, err := b.engine.Switch(t.Context(), next)
	require.NoError(t, err)
	require.Len(t, r.Refused, 1)
	requireHolds(t, next.Kernel(), services(1))
}

func TestSwitchThatCannotCleanUpSaysSo(t *testing.T) {
	t.Parallel()
	b, next := newBench(nil), memory.New(nil)
	b.apply(t, services(1))
	b.Fail(memory.CallCleanup, 1, errRefused)
	r, err := b.engine.Switch(t.Context(), next)
	require.ErrorIs(t, err, errRefused)
	require.NotNil(t, r)
	requireHolds(t, next.Kernel(), services(1))
	requireHolds(t, b.Kernel(), services(1))
	_, err = dataplane.New(b.Backend, nil).Cleanup(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Kernel().Table().Len())
}

// A Run goes on with the new backend: it repairs there, and watches there.
func TestRunGoesOnAfterASwitch(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never})
		next := memory.New(nil)
		r.set(services(1))
		r.at(time.Second)
		_, err := r.engine.Switch(t.Context(), next)
		require.NoError(t, err)
		r.set(services(2))
		synctest.Wait()
		requireHolds(t, next.Kernel(), services(2))
		next.Kernel().Flush()
		r.at(2 * time.Second)
		requireHolds(t, next.Kernel(), services(2))
		require.Zero(t, r.Kernel().Table().Len())
	})
}

// The backend before is watched no more, the new one is.
func TestRunWatchesTheBackendItSwitchedTo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, old := newWatching()
		_, next := newWatching()
		r := runOn(t, b, dataplane.RunOptions{Resync: never, Look: never})
		r.set(services(1))
		r.at(time.Second)
		_, err := r.engine.Switch(t.Context(), next)
		require.NoError(t, err)
		r.at(2 * time.Second)
		next.events <- nil
		r.at(3 * time.Second)
		require.Equal(t, seconds(0, 2), r.applies)
		old.events <- nil
		r.at(time.Minute)
		require.Len(t, r.applies, 2)
	})
}
