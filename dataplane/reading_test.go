package dataplane_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
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
		b.requireCalls(t, 1+7, b.Calls("commit"))

		// A reading that finds something does not count.
		b.Kernel().AddDrift("a chain of nobody")
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"a chain of nobody"}, b.apply(t, services(1)).Drift)
		b.Kernel().AddDrift("another one")
		require.Equal(t, []string{"another one"}, b.apply(t, services(1)).Drift)
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
			reads := b.Calls("observe")
			for range 1000 {
				b.Kernel().Touch()
				b.apply(t, s)
				time.Sleep(10 * time.Millisecond)
			}
			require.InDelta(t, 3+10, b.Calls("observe")-reads, 1)
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
		b.Before("observe", func(context.Context) error {
			time.Sleep(2 * time.Second)
			return fmt.Errorf("the table moved: %w", dataplane.ErrConflict)
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
		b.Before("observe", func(context.Context) error {
			b.Before("observe", nil)
			newBench(b.Kernel()).apply(t, services(1)) // another writer
			return dataplane.ErrConflict
		})
		r := b.apply(t, s)
		require.True(t, r.Observed, "what is known is not good enough if it is broken")
		require.Equal(t, servicemodel.Counts{Added: 1, Changed: 1, Removed: 1}, r.Repaired)

		b.Kernel().Touch()
		time.Sleep(time.Hour)
		reads := b.Calls("observe")
		b.Fail("observe", 1, dataplane.ErrConflict)
		b.Before("integrity", func(context.Context) error {
			if b.Calls("observe") == reads {
				return nil
			}
			return errRefused
		})
		require.True(t, b.apply(t, s).Observed, "nor if that cannot be told")
		b.Before("integrity", nil)

		b.Kernel().Touch()
		time.Sleep(time.Hour)
		b.Fail("observe", 1, errRefused)
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

func (u *unordered) Integrity(context.Context) (dataplane.Integrity, error) {
	return dataplane.Touched, nil
}

func (u *unordered) Commit(_ context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	u.held = nocopy.Of(c.New).Contents()
	return dataplane.Stats{}, nil
}

func (u *unordered) Observe(context.Context, *servicemodel.Table) (*dataplane.Observation, error) {
	u.reads++
	for _, p := range u.held.Pools {
		slices.Reverse(p.Slots)
	}
	t, err := servicemodel.NewTable(u.held)
	return &dataplane.Observation{Table: t}, err
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
