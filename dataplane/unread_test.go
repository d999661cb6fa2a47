package dataplane_test

import (
	"context"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
)

// newHinted returns an engine without memory, on a backend whose readings use hints.
func newHinted(k *memory.Kernel) *bench {
	b := newBench(k)
	b.HeedHints(true)
	return b
}

func TestWhatIsWantedComesFirst(t *testing.T) {
	t.Parallel()
	old := newBench(nil)
	old.apply(t, services(3))
	old.Kernel().AddDrift("a chain of nobody")

	b, f := newHinted(old.Kernel()), &told{}
	b.engine = dataplane.New(b.Backend, &dataplane.Config{Flows: f})
	next := services(4).WithoutService(serviceName(1)).WithEndpoints(serviceName(2), endpoints(9))
	var held []int
	b.Before("commit", func(context.Context) error {
		held = append(held, b.Kernel().Table().Len())
		return nil
	})
	r := b.apply(t, next)
	require.Equal(t, []int{3, 4}, held, "the new service is there before the old one goes")
	b.requireCalls(t, 2, 2)
	require.Empty(t, b.Kernel().Drift())
	require.Equal(t, []string{"a chain of nobody"}, r.Drift)
	require.Equal(t, servicemodel.Counts{Added: 1, Changed: 1, Removed: 2}, r.Counts)
	require.NotContains(t, r.Changes.String(), "svc-1:")
	require.Contains(t, r.Rest.String(), "- frontend 10.96.0.1:80/tcp")
	require.Equal(t, servicemodel.Counts{Removed: 1}, r.Rest.Counts())
	texts := ""
	for _, c := range f.changes {
		texts += c.String()
	}
	require.Contains(t, texts, "- pool default/svc-1:http/tcp", "flows are told of both")
	require.Contains(t, texts, "+ frontend 10.96.0.4:80/tcp")

	r = b.apply(t, next)
	require.Nil(t, r.Rest)
	require.False(t, r.Observed)
	b.requireCalls(t, 2, 2)
}

func TestNothingUnwantedNeedsNoSecondReading(t *testing.T) {
	t.Parallel()
	old := newBench(nil)
	old.apply(t, services(3))
	b := newHinted(old.Kernel())
	require.Nil(t, b.apply(t, services(4)).Rest)
	b.requireCalls(t, 1, 1)

	// An engine must not begin another apply from a reading with a hint.
	b = newHinted(old.Kernel())
	b.Refuse(func(*servicemodel.ChangeSet) error { return errRefused })
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(1))), errRefused)
	b.Refuse(nil)
	p := ok(b.engine.Plan(t.Context(), services(3)))(t)
	require.Equal(t, servicemodel.Counts{Removed: 1}, p.Changes.Counts(), "a plan shows all of it")
	b.requireCalls(t, 2, 0)
	r := b.apply(t, services(3))
	require.Nil(t, r.Rest)
	require.False(t, r.Observed)

	// No wanted object is missing, but there is one that nobody wants.
	b = newHinted(old.Kernel())
	r = b.apply(t, services(2))
	require.True(t, r.Changes.Empty())
	require.Equal(t, servicemodel.Counts{Removed: 1}, r.Rest.Counts())
	b.requireCalls(t, 2, 1)
}

func TestTheRestIsTriedAgainByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		old := newBench(nil)
		old.apply(t, services(3))
		b := newHinted(old.Kernel())
		commits := 0
		b.Before("commit", func(context.Context) error {
			if commits++; commits == 2 || commits == 3 {
				return dataplane.ErrConflict
			}
			return nil
		})
		r := b.apply(t, services(4).WithoutService(serviceName(1)))
		require.Equal(t, servicemodel.Counts{Added: 1, Removed: 1}, r.Counts)
		b.requireCalls(t, 4, 4)
		require.Equal(t, 1, b.Calls("check"),
			"what is wanted is not compared again")

		b = newHinted(old.Kernel())
		b.Before("commit", func(context.Context) error {
			if b.Calls("commit") == 2 {
				return errRefused
			}
			return nil
		})
		_, err := b.engine.Apply(t.Context(), services(5).WithoutService(serviceName(2)))
		require.ErrorIs(t, err, errRefused)
		require.NotNil(t, b.Kernel().Table().Frontend(frontendKey(5)))
		require.True(t, b.apply(t, services(1)).Observed)
	})
}

func TestARemovalBesideANeighbourNeedsNoSecondReading(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newHinted(nil)
		b.apply(t, services(3))
		b.Kernel().Touch()
		time.Sleep(time.Hour)
		r := b.apply(t, services(2))
		require.True(t, r.Observed)
		require.Nil(t, r.Rest, "what is known to be there is no rest")
		b.requireCalls(t, 2, 2)
	})
}

func TestTheRestThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	old := newBench(nil)
	old.apply(t, services(3))
	b := newHinted(old.Kernel())
	b.Before("observe", func(context.Context) error {
		if b.Calls("observe") == 2 {
			return errRefused
		}
		return nil
	})
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
	require.Equal(t, servicemodel.Counts{Removed: 1}, b.apply(t, services(2)).Counts)
}

func TestTheRestPutsRightWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	old := newBench(nil)
	old.apply(t, services(5))
	b := newHinted(old.Kernel())
	b.Before("observe", func(ctx context.Context) error {
		if b.Calls("observe") == 2 {
			b.Kernel().Lose(frontendKey(2))
			b.Kernel().Lose(frontendKey(3))
		}
		return nil
	})
	r := b.apply(t, services(6).WithoutService(serviceName(1)).WithEndpoints(serviceName(4),
		endpoints(9)))
	require.Equal(t, servicemodel.Counts{Added: 2, Removed: 1}, r.Rest.Counts())
	require.Equal(t, servicemodel.Counts{Added: 3, Changed: 1, Removed: 2}, r.Counts)
	require.Equal(t, 15, r.Messages, "those of both commits: %s%s", r.Changes, r.Rest)
	require.Equal(t, 15, r.Elements)
	require.Equal(t, len(r.Changes.String()+r.Rest.String()), r.Bytes)
}
