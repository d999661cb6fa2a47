package dataplane_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// besideANeighbour applies a change each second during the given time, each after a foreign commit.
// It returns the times of the readings since the start.
func besideANeighbour(t *testing.T, b *bench, during time.Duration) (reads []time.Duration) {
	t.Helper()
	start := time.Now()
	for i := 0; time.Since(start) < during; i++ {
		time.Sleep(time.Second)
		b.Kernel().Touch()
		began := time.Since(start)
		r := ok(b.engine.Apply(t.Context(), services(1).WithEndpoints(serviceName(1),
			endpoints(byte(1+i%2)))))(t)
		require.Len(t, r.Changes.Pools, 1)
		if r.Observed {
			reads = append(reads, began)
		}
	}

	return reads
}

func TestANeighbourIsReadForAShareOfTheTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		slowReads(b, time.Second)
		b.apply(t, services(1).WithEndpoints(serviceName(1), endpoints(9)))
		require.Equal(t, seconds(1, 199, 399, 599, 799, 999), besideANeighbour(t, b,
			20*time.Minute)[:6], "at once, and then 200 times the reading later")
		b.requireCalls(t, 1+7, b.Calls(memory.CallCommit))

		// A reading that finds something does not count towards the limit.
		b.Kernel().AddDrift("a chain of nobody")
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"a chain of nobody"}, b.apply(t, services(1)).Drift)
		b.Kernel().AddDrift("another one")
		require.Equal(t, []string{"another one"}, b.apply(t, services(1)).Drift)
	})
}

// once is a backend that reports each suspicion once.
type once struct {
	*memory.Backend
	touched bool
}

func (b *once) Integrity(context.Context) (backends.Integrity, error) {
	i := backends.Intact
	if b.touched {
		b.touched, i = false, backends.Touched
	}
	return i, nil
}

// A suspicion that the limit puts off is not forgotten, even if the backend reports it only once.
func TestASuspicionOutlivesTheRation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := &once{Backend: memory.New(nil)}
		e := dataplane.New(b, nil)
		apply := func() *dataplane.Result { return ok(e.Apply(t.Context(), services(1)))(t) }
		b.Before(memory.CallObserve, func(context.Context) error {
			time.Sleep(time.Second)
			return nil
		})

		apply()
		b.touched = true
		require.True(t, apply().Observed, "the ration is used up")

		b.Kernel().Lose(frontendKey(1))
		b.touched = true
		require.False(t, apply().Observed)
		time.Sleep(time.Hour)
		r := apply()
		require.True(t, r.Observed)
		require.Equal(t, 1, r.Repaired.Added)
	})
}

func TestShortReadingsComeOnceASecond(t *testing.T) {
	for name, s := range map[string]servicemodel.State{
		"a service":                     services(1),
		"with a health check node port": services(1).WithService(withHealthCheck(1)),
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBench(nil)
			slowReads(b, time.Millisecond)
			b.apply(t, s)
			reads := b.Calls(memory.CallObserve)
			for range 1000 {
				b.Kernel().Touch()
				b.apply(t, s)
				time.Sleep(10 * time.Millisecond)
			}

			require.InDelta(t, 3+10, b.Calls(memory.CallObserve)-reads, 1)
			require.Zero(t, b.status().Totals.Repairs)
			require.True(t, b.status().Held.Equal(b.Kernel().Table()))
		})
	}
}

func TestAReadingThatOthersInterruptIsPutOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		slowReads(b, time.Second)
		b.apply(t, services(2))
		require.True(t, b.Kernel().Lose(frontendKey(2)))
		b.Before(memory.CallObserve, func(context.Context) error {
			time.Sleep(2 * time.Second)
			return fmt.Errorf("the table moved: %w", kernelerr.ErrConflict)
		})

		time.Sleep(time.Minute)
		s := services(2).WithEndpoints(serviceName(1), endpoints(9))
		for _, wait := range []time.Duration{0, time.Second, 394 * time.Second} {
			time.Sleep(wait)
			r := ok(b.engine.Apply(t.Context(), s))(t)
			require.False(t, r.Observed, "what is known is good enough")
		}

		b.requireCalls(t, 2, 2)
		slowReads(b, time.Second)
		time.Sleep(2 * time.Second)
		r := b.apply(t, s)
		require.True(t, r.Observed, "and is tried again after its share of time")
		require.Equal(t, servicemodel.Counts{Added: 1}, r.Repaired)
	})
}

func TestAReadingThatFailsIsNotPutOffWhereTheKernelMayBeBroken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		s := services(2).WithEndpoints(serviceName(1), endpoints(9))
		b.apply(t, s)
		b.Kernel().Touch()
		time.Sleep(time.Hour)
		b.Before(memory.CallObserve, func(context.Context) error {
			b.Before(memory.CallObserve, nil)
			newBench(b.Kernel()).apply(t, services(1)) // another writer
			return kernelerr.ErrConflict
		})

		r := b.apply(t, s)
		require.True(t, r.Observed, "what is known is not good enough if it is broken")
		require.Equal(t, servicemodel.Counts{Added: 1, Changed: 1, Removed: 1}, r.Repaired)

		b.Kernel().Touch()
		time.Sleep(time.Hour)
		reads := b.Calls(memory.CallObserve)
		b.Fail(memory.CallObserve, 1, kernelerr.ErrConflict)
		b.Before(memory.CallIntegrity, func(context.Context) error {
			if b.Calls(memory.CallObserve) == reads {
				return nil
			}
			return errRefused
		})

		require.True(t, b.apply(t, s).Observed, "nor if that cannot be told")
		b.Before(memory.CallIntegrity, nil)

		b.Kernel().Touch()
		time.Sleep(time.Hour)
		b.Fail(memory.CallObserve, 1, errRefused)
		_, err := b.engine.Apply(t.Context(), s)
		require.ErrorIs(t, err, errRefused, "any other failure is one")
		require.True(t, b.apply(t, s).Observed)
	})
}

// unordered is a kernel that touches nothing of ours and does not keep the order of endpoints.
type unordered struct {
	costless
	held  servicemodel.Contents
	reads int
}

func (u *unordered) Integrity(context.Context) (backends.Integrity, error) {
	return backends.Touched, nil
}

func (u *unordered) Commit(_ context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	u.held = c.New.Contents()
	return backends.Stats{}, nil
}

func (u *unordered) Observe(context.Context, *servicemodel.Table) (*backends.Observation, error) {
	u.reads++
	for _, p := range u.held.Pools {
		slices.Reverse(p.Slots)
	}
	t, err := servicemodel.NewTable(u.held)
	return &backends.Observation{Table: t}, err
}

func TestAnotherOrderOfEndpointsIsNoDifference(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		u := &unordered{}
		e := dataplane.New(u, nil)
		for range 1000 {
			r := ok(e.Apply(t.Context(), services(3)))(t)
			require.False(t, r.IsRepair())
			require.Equal(t, u.reads == 1 && r.Observed, r.Changes.Counts().Added > 0)
			time.Sleep(10 * time.Millisecond)
		}

		require.InDelta(t, 1+3+10, u.reads, 1)
	})
}

// newHinted returns an engine on a backend whose readings use hints. The kernel holds services 1 to
// n of another engine.
func newHinted(t *testing.T, n int) *bench {
	t.Helper()
	b := newBench(nil)
	b.apply(t, services(n))
	return hinted(b.Kernel())
}

// hinted returns a new engine on a backend whose readings use hints.
func hinted(k *memory.Kernel) *bench {
	b := newBench(k)
	b.HeedHints(true)
	return b
}

func TestWhatIsWantedComesFirst(t *testing.T) {
	t.Parallel()
	b, f := newHinted(t, 3), &told{}
	b.Kernel().AddDrift("a chain of nobody")
	b.engine = dataplane.New(b.Backend, &dataplane.Config{Flows: f})
	next := services(4).WithoutService(serviceName(1)).WithEndpoints(serviceName(2), endpoints(9))
	var held []int
	b.Before(memory.CallCommit, func(context.Context) error {
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
	b := newHinted(t, 3)
	require.Nil(t, b.apply(t, services(4)).Rest)
	b.requireCalls(t, 1, 1)

	// An engine must not begin another apply from a reading with a hint.
	b = hinted(b.Kernel())
	b.Refuse(func(*servicemodel.ChangeSet) error { return errRefused })
	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(1))), errRefused)
	b.Refuse(nil)
	p := ok(b.engine.Plan(t.Context(), services(3)))(t)
	require.Equal(t, servicemodel.Counts{Removed: 1}, p.Changes.Counts(), "a plan shows all of it")
	b.requireCalls(t, 2, 0)
	r := b.apply(t, services(3))
	require.Nil(t, r.Rest)
	require.False(t, r.Observed)

	// No wanted object is missing, but the kernel has an unwanted object.
	b = hinted(b.Kernel())
	r = b.apply(t, services(2))
	require.True(t, r.Changes.Empty())
	require.Equal(t, servicemodel.Counts{Removed: 1}, r.Rest.Counts())
	b.requireCalls(t, 2, 1)
}

func TestTheRestIsTriedAgainByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newHinted(t, 3)
		commits := 0
		b.Before(memory.CallCommit, func(context.Context) error {
			if commits++; commits == 2 || commits == 3 {
				return kernelerr.ErrConflict
			}
			return nil
		})

		r := b.apply(t, services(4).WithoutService(serviceName(1)))
		require.Equal(t, servicemodel.Counts{Added: 1, Removed: 1}, r.Counts)
		b.requireCalls(t, 4, 4)
		require.Equal(t, 1, b.Calls(memory.CallCheck),
			"what is wanted is not compared again")

		b = hinted(b.Kernel())
		b.Before(memory.CallCommit, func(context.Context) error {
			if b.Calls(memory.CallCommit) == 2 {
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
		b := hinted(nil)
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
	b := newHinted(t, 3)
	b.Before(memory.CallObserve, func(context.Context) error {
		if b.Calls(memory.CallObserve) == 2 {
			return errRefused
		}
		return nil
	})

	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(2))), errRefused)
	require.Equal(t, servicemodel.Counts{Removed: 1}, b.apply(t, services(2)).Counts)
}

func TestTheRestPutsRightWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	b := newHinted(t, 5)
	b.Before(memory.CallObserve, func(ctx context.Context) error {
		if b.Calls(memory.CallObserve) == 2 {
			b.Kernel().Lose(frontendKey(2))
			b.Kernel().Lose(frontendKey(3))
		}

		return nil
	})

	r := b.apply(t, services(6).WithoutService(serviceName(1)).WithEndpoints(serviceName(4),
		endpoints(9)))
	require.Equal(t, servicemodel.Counts{Added: 2, Removed: 1}, r.Rest.Counts())
	require.Equal(t, servicemodel.Counts{Added: 3, Changed: 1, Removed: 2}, r.Counts)
	require.Equal(t, 15, r.Stats.Messages, "those of both commits: %s%s", r.Changes, r.Rest)
	require.Equal(t, 15, r.Stats.Elements)
	require.Equal(t, len(r.Changes.String()+r.Rest.String()), r.Stats.Bytes)
}
