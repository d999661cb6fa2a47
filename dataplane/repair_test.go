package dataplane_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestRunRepairsWhatOthersDid(t *testing.T) {
	for name, c := range map[string]struct {
		damage   func(k *memory.Kernel)
		repaired servicemodel.Counts
		drift    []string
	}{
		"everything is flushed": {func(k *memory.Kernel) { k.Flush() },
			servicemodel.Counts{Added: 2}, nil},
		"one service is lost": {func(k *memory.Kernel) { k.Lose(frontendKey(2)) },
			servicemodel.Counts{Added: 1}, nil},
		"there is something foreign": {func(k *memory.Kernel) { k.AddDrift("a chain") },
			servicemodel.Counts{}, []string{"a chain"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				r := run(t, dataplane.RunOptions{Resync: never})
				r.set(services(2))
				r.at(time.Minute)
				require.Len(t, r.applies, 1, "nobody is told of looks that find nothing")
				r.requireCalls(t, 1, 1)
				c.damage(r.Kernel())
				r.at(time.Minute + 250*time.Millisecond)
				require.Len(t, r.applies, 2)
				requireHolds(t, r.Kernel(), services(2))
				require.Empty(t, r.Kernel().Drift())
				require.True(t, r.results[1].IsRepair())
				require.Equal(t, c.repaired, r.results[1].Repaired)
				require.Equal(t, c.drift, r.results[1].Drift)
				require.Zero(t, r.results[1].Counts, "nothing is wanted that was not before")
				require.Equal(t, dataplane.Totals{Applies: 2, Repairs: 1, Repaired: c.repaired},
					r.engine.Status().Totals)
				r.at(time.Hour)
				require.Len(t, r.applies, 2)
			})
		})
	}
}

// A change that finds damage is a change and a repair.
func TestAChangeAndARepairAreToldApart(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	require.False(t, b.apply(t, services(3)).IsRepair(), "it is the first")
	b.Kernel().Flush()
	r := b.apply(t, services(4).WithoutService(serviceName(1)))
	require.Equal(t, servicemodel.Counts{Added: 1, Removed: 1}, r.Counts)
	require.Equal(t, servicemodel.Counts{Added: 3}, r.Repaired)
	require.Equal(t, servicemodel.Counts{Added: 3}, r.Changes.Counts())
	require.False(t, b.apply(t, services(4)).IsRepair())
}

// What a commit of ours left half done is not what others did.
func TestWhatAFailedApplyLeftIsNoRepair(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.apply(t, services(1))
	b.Fail(memory.CallCommit, 1, errRefused)
	_, err := b.engine.Apply(t.Context(), services(3))
	require.ErrorIs(t, err, errRefused)
	r := b.apply(t, services(3))
	require.False(t, r.IsRepair())
	require.Equal(t, servicemodel.Counts{Added: 2}, r.Counts)
	require.Equal(t, dataplane.Totals{Applies: 2, Failures: 1}, b.engine.Status().Totals)
	b.Kernel().Flush()
	require.True(t, b.apply(t, services(3)).IsRepair())
}

func TestRunDoesNotLookIfItIsToldNotTo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never, Look: never})
		r.set(services(1))
		r.at(time.Second)
		before := r.Calls(memory.CallIntegrity)
		r.Kernel().Flush()
		r.at(time.Hour)
		require.Len(t, r.applies, 1)
		require.Equal(t, before, r.Calls(memory.CallIntegrity))
	})
}

// Somebody who undoes each repair at once costs neither a CPU nor the log: repairs come once a
// second then, or take a tenth of the time. When it ends, the last one stays.
func TestRunDoesNotFightWithoutEnd(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		most  int // repairs in the first minute
	}{
		"repairs that are short": {0, 5 + 60},
		"repairs that take long": {time.Second, 5 + 6},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var log bytes.Buffer
				m := memory.New(nil)
				e := dataplane.New(m, &dataplane.Config{
					Logger: slog.New(slog.NewTextHandler(&log, nil))})
				r := runOn(t, &bench{m, e}, dataplane.RunOptions{Resync: never})
				r.set(services(1))
				r.at(0)
				r.Before(memory.CallCommit, func(ctx context.Context) error {
					time.Sleep(c.takes)
					return nil
				})
				for i := range 60 * 10 {
					if r.Kernel().Table().Len() > 0 {
						r.Kernel().Flush()
					}
					r.at(time.Duration(i+1) * 100 * time.Millisecond)
				}
				repairs := len(r.applies) - 1
				require.LessOrEqual(t, repairs, c.most)
				require.Greater(t, repairs, c.most/2)
				r.at(2 * time.Minute)
				requireHolds(t, r.Kernel(), services(1))
				require.Equal(t, len(r.applies)-1, e.Status().Totals.Repairs)
				require.Contains(t, log.String(), "somebody undoes repairs again and again")
				require.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("again and again")), repairs)
			})
		})
	}
}

// What fails while it is repaired is tried again as any apply is.
func TestRunTriesARepairAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never, RetryMin: time.Second})
		r.set(services(2))
		r.at(time.Second)
		r.Kernel().Flush()
		r.Fail(memory.CallCommit, 2, errRefused)
		r.at(time.Minute)
		requireTimes(t, []time.Duration{0, 1250e6, 2250e6, 4250e6}, r.applies)
		requireHolds(t, r.Kernel(), services(2))
		r.Fail(memory.CallIntegrity, 1, errRefused)
		r.at(time.Hour)
		require.Len(t, r.applies, 5)
		require.Zero(t, r.results[4].Messages, "the apply after a look that failed finds nothing")
	})
}
