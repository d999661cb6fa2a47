package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
)

var errRefused = errors.New("operation not permitted")

func TestConflictsAreReadAndTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(3))
		others := 3
		b.Before("commit", func(context.Context) error {
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

func TestReadingIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(1))
		var others int
		b.Before("observe", func(context.Context) error {
			if others--; others >= 0 {
				return fmt.Errorf("the table moved: %w", dataplane.ErrConflict)
			}
			return nil
		})
		others = 3
		b.engine.Resync()
		p := ok(b.engine.Plan(t.Context(), services(2)))(t)
		require.Equal(t, servicemodel.Counts{Added: 1}, p.Changes.Counts())

		others = 3
		o := ok(b.engine.Observe(t.Context()))(t)
		require.Equal(t, 1, o.Table.Len())

		others = 100
		_, err := b.engine.Observe(t.Context())
		require.ErrorIs(t, err, dataplane.ErrConflict)
		require.ErrorContains(t, err, "observe: tried 16 times: ")
	})
}

func TestConflictsWithoutEndAreReturned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(1))
		b.Before("commit", func(context.Context) error {
			return fmt.Errorf("the version is another: %w", dataplane.ErrConflict)
		})
		_, err := b.engine.Apply(t.Context(), services(2))
		require.ErrorIs(t, err, dataplane.ErrConflict)
		require.ErrorContains(t, err, "apply: tried 16 times: memory: commit: ")
		b.requireCalls(t, 16, 17)
		requireHolds(t, b.Kernel(), services(1))

		b.Before("commit", nil)
		require.True(t, b.apply(t, services(2)).Observed)

		ctx, cancel := context.WithCancelCause(t.Context())
		b.Before("commit", func(context.Context) error {
			time.AfterFunc(time.Microsecond, func() { cancel(errRefused) })
			return dataplane.ErrConflict
		})
		_, err = b.engine.Apply(ctx, services(3))
		require.ErrorIs(t, err, errRefused,
			"the cause of the end of the context, while waiting for the next try")
	})
}

func TestAfterAnErrorTheKernelIsRead(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Fail("observe", 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(1))), errRefused)
	require.True(t, b.apply(t, services(1)).Observed)

	b.Fail("commit", 2, errRefused)
	for range 2 {
		require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
		requireHolds(t, b.Kernel(), services(1))
	}
	b.requireCalls(t, 3, 3)
	r := b.apply(t, services(2))
	require.True(t, r.Observed)
	require.Equal(t, servicemodel.Counts{Added: 1}, r.Counts)
	require.False(t, b.apply(t, services(2)).Observed)
}

func TestACommitWhoseAnswerWasLostIsAdopted(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	b.Before("commit", func(context.Context) error {
		newBench(b.Kernel()).apply(t, services(2)) // stands for the part that took effect
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
	b.Fail("integrity", 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
	requireHolds(t, b.Kernel(), services(1))
	b.apply(t, services(2))
	require.Equal(t, 2, b.Calls("integrity"))
}

// slowReads makes each observation take d.
func slowReads(b *bench, d time.Duration) {
	b.Before("observe", func(context.Context) error {
		time.Sleep(d)
		return nil
	})
}

// exhaust uses up the ration of readings: a neighbour causes some that find nothing.
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
		r := b.apply(t, services(2)) // our commit made the kernel's generation ours again
		require.True(t, r.Observed)
		require.Equal(t, []string{"a chain of nobody"}, r.Drift)
		require.Empty(t, b.Kernel().Drift())
	})
}

func TestAChangeOfWhatOthersTookIsAConflictAndRepairs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, services(3))
		exhaust(t, b, services(3))
		b.Kernel().Lose(frontendKey(1))
		b.Kernel().Lose(frontendKey(3))
		r := b.apply(t, services(2))
		require.True(t, r.Observed, "although it is not time to read yet")
		require.Equal(t, servicemodel.Counts{Removed: 1}, r.Counts)
		require.Equal(t, servicemodel.Counts{Added: 2}, r.Repaired)
		require.Equal(t, servicemodel.Counts{Added: 1}, r.Changes.Counts())
	})
}

func TestBrokenIsReadAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, s := newBench(nil), services(2)
		slowReads(b, time.Second)
		b.apply(t, s)
		b.Kernel().Flush()
		r := b.apply(t, s)
		require.True(t, r.Observed)
		require.Equal(t, servicemodel.Counts{Added: 2}, r.Repaired)
		require.Zero(t, r.Counts)
		require.True(t, r.IsRepair())
		b.requireCalls(t, 2, 2)
	})
}

func TestDriftIsCommittedWithAnEmptyChangeSet(t *testing.T) {
	t.Parallel()
	b, s := newBench(nil), services(2)
	b.apply(t, s)
	b.Kernel().AddDrift("an element of nobody", "half a frontend")
	b.engine.Resync()
	b.Fail("commit", 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), s)), errRefused)
	require.Len(t, b.Kernel().Drift(), 2)

	r := b.apply(t, s)
	require.Equal(t, []string{"an element of nobody", "half a frontend"}, r.Drift)
	require.True(t, r.Changes.Empty())
	require.Equal(t, 2, r.Messages)
	require.Empty(t, b.Kernel().Drift())

	r = b.apply(t, s)
	require.Empty(t, r.Drift)
	b.requireCalls(t, 3, 3)
}

func TestEndedContextsTouchNothing(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("terminated"))
	for name, call := range map[string]func() error{
		"apply": func() error { _, err := b.engine.Apply(ctx, services(2)); return err },
		"plan":  func() error { _, err := b.engine.Plan(ctx, services(2)); return err },
		"clean": func() error { _, err := b.engine.Cleanup(ctx); return err },
		"read":  func() error { _, err := b.engine.Observe(ctx); return err },
	} {
		require.ErrorIs(t, call(), context.Canceled, name)
		requireHolds(t, b.Kernel(), services(1))
		require.False(t, b.status().Pending(), "%s: nothing else is wanted", name)
	}
	require.False(t, b.apply(t, services(2)).Observed, "what was known still is")
}
