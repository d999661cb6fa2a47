package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
)

var errRefused = errors.New("operation not permitted")

func TestConflictsAreReadAndTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(3))
		others := 3
		b.Before(memory.CallCommit, func(context.Context) error {
			if others--; others >= 0 {
				newBench(b.Kernel()).apply(t, services(others))
			}
			return nil
		})

		r := b.apply(t, services(4))
		require.Equal(t, servicemodel.Counts{Added: 1}, r.Counts, "the new one")
		require.Equal(t, servicemodel.Counts{Added: 3}, r.Repaired, "that the others deleted")
		require.True(t, r.Observed)
		b.requireCalls(t, 4, 5)
	})
}

func TestConflictsWithoutEndAreReturned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(1))
		b.Before(memory.CallCommit, func(context.Context) error {
			return fmt.Errorf("the version is another: %w", kernelerr.ErrConflict)
		})
		_, err := b.engine.Apply(t.Context(), services(2))
		require.ErrorIs(t, err, kernelerr.ErrConflict)
		require.ErrorContains(t, err, "apply: tried 16 times: memory: commit: ")
		b.requireCalls(t, 16, 17)
		requireHolds(t, b.Kernel(), services(1))

		b.Before(memory.CallCommit, nil)
		require.True(t, b.apply(t, services(2)).Observed)

		ctx, cancel := context.WithCancelCause(t.Context())
		b.Before(memory.CallCommit, func(context.Context) error {
			time.AfterFunc(time.Microsecond, func() { cancel(errRefused) })
			return kernelerr.ErrConflict
		})

		_, err = b.engine.Apply(ctx, services(3))
		require.ErrorIs(t, err, errRefused,
			"the cause of the end of the context, while waiting for the next try")
	})
}

func TestACommitWhoseAnswerWasLostIsAdopted(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	b.Before(memory.CallCommit, func(context.Context) error {
		newBench(b.Kernel()).apply(t, services(2)) // simulates the part that took effect
		return errRefused
	})

	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
	r := b.apply(t, services(2))
	require.True(t, r.Observed)
	require.True(t, r.Changes.Empty(), "%s", r.Changes)
	b.requireCalls(t, 2, 2)
}

func TestAFailedIntegrityIsAnErrorAndIsAskedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	b.Fail(memory.CallIntegrity, 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
	requireHolds(t, b.Kernel(), services(1))
	b.apply(t, services(2))
	require.Equal(t, 2, b.Calls(memory.CallIntegrity))
}

// slowReads makes each observation take d.
func slowReads(b *bench, d time.Duration) {
	b.Before(memory.CallObserve, func(context.Context) error {
		time.Sleep(d)
		return nil
	})
}

// exhaust uses up the limit of readings: a neighbour causes readings that find nothing.
func exhaust(t *testing.T, b *bench, s servicemodel.State) {
	t.Helper()
	for range 3 {
		b.Kernel().Touch()
		require.True(t, b.apply(t, s).Observed)
	}
}

func TestASuspicionOutlivesOurOwnCommits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(1))
		exhaust(t, b, services(1))
		b.Kernel().AddDrift("a chain of nobody")
		require.False(t, b.apply(t, services(2)).Observed)
		time.Sleep(2 * time.Second)
		r := b.apply(t, services(2)) // after our commit, the kernel's generation is ours again
		require.True(t, r.Observed)
		require.Equal(t, []string{"a chain of nobody"}, r.Drift)
		require.Empty(t, b.Kernel().Drift())
	})
}
