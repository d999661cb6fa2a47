package dataplane_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// runner is a Run in a bubble of testing/synctest, where time passes only while all goroutines
// wait. A bubble must not have goroutines at its end, so each of these tests also proves that Run
// leaves no goroutines.
type runner struct {
	*bench
	cancel context.CancelCauseFunc
	start  time.Time
	// applies are the times of applies since the start, and results their outcomes.
	applies []time.Duration
	results []*dataplane.Result
	errs    []error
	ended   chan error
}

// inBubble runs f in its own bubble.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// bubble runs f in its own bubble, as a test of that name.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, f) })
}

func run(t *testing.T, o dataplane.RunOptions) *runner { return runOn(t, newBench(nil), o) }

// runOn starts a Run of an engine.
func runOn(t *testing.T, b *bench, o dataplane.RunOptions) *runner {
	r := &runner{bench: b, start: time.Now(), ended: make(chan error, 1)}
	var ctx context.Context
	ctx, r.cancel = context.WithCancelCause(t.Context())
	t.Cleanup(func() { r.cancel(nil) })
	r.engine.Subscribe(r.hear)
	go func() { r.ended <- r.engine.Run(ctx, &o) }()
	return r
}

// hear records applies and failures.
func (r *runner) hear(_ context.Context, ev dataplane.Event) {
	note := func(res *dataplane.Result, err error) {
		r.applies, r.results, r.errs = append(r.applies, time.Since(r.start)),
			append(r.results, res), append(r.errs, err)
	}

	switch ev := ev.(type) {
	case dataplane.Applied:
		note(ev.Result, nil)
	case dataplane.Failed:
		if ev.Doing == "settle" && ev.Revision > 0 { // failed later work of the previous apply
			r.errs[len(r.errs)-1] = ev.Err
			return
		}

		note(nil, ev.Err)
	case dataplane.WatchFailed:
		note(nil, ev.Err)
	}
}

func (r *runner) set(s servicemodel.State) { r.engine.Set(s) }

func (r *runner) stop() {
	r.cancel(nil)
	<-r.ended
}

// at sleeps until d after the start, and until nothing more happens.
func (r *runner) at(d time.Duration) {
	r.engine.Status() // tells the race detector that the test has read its values
	time.Sleep(d - time.Since(r.start))
	synctest.Wait()
}

// commitsTake makes every commit take d.
func (r *runner) commitsTake(d time.Duration) {
	r.Before(memory.CallCommit, func(context.Context) error {
		time.Sleep(d)
		return nil
	})
}

const never = -1

func seconds(s ...time.Duration) []time.Duration {
	for i := range s {
		s[i] *= time.Second
	}
	return s
}

// requireTimes requires these times, each up to a quarter later, because retries wait up to a
// quarter longer at random.
func requireTimes(t *testing.T, want, got []time.Duration, msg ...any) {
	t.Helper()
	require.Len(t, got, len(want), msg...)
	for i := range want {
		require.GreaterOrEqual(t, got[i], want[i], msg...)
		require.LessOrEqual(t, got[i], want[i]*5/4, msg...)
	}
}

func TestRunCollapsesStatesThatArriveWhileItApplies(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: never})
		r.commitsTake(10 * time.Second)
		r.set(services(1))
		r.at(time.Second)
		for n := 2; n <= 6; n++ {
			r.set(services(n))
		}
		r.at(time.Minute)
		require.Equal(t, seconds(10, 20), r.applies)
		require.Equal(t, servicemodel.Counts{Added: 5}, r.results[1].Counts)
		requireHolds(t, r.Kernel(), services(6))
		r.requireCalls(t, 1, 2)
	})
}

func TestRunKeepsTheMinimalInterval(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{MinInterval: 10 * time.Second, Resync: never})
		r.commitsTake(2 * time.Second)
		r.set(services(1))
		for n := 2; n <= 5; n++ {
			r.at(time.Duration(n) * time.Second)
			r.set(services(n))
		}

		r.at(time.Minute)
		require.Equal(t, seconds(2, 14), r.applies, "ten seconds between an end and a start")
		requireHolds(t, r.Kernel(), services(5))
		r.set(services(6))
		synctest.Wait()
		r.at(2 * time.Minute)
		require.Equal(t, seconds(2, 14, 62), r.applies,
			"it does not wait when the interval has passed")
	})
}

// After a quiet time, some applies follow one another. Then the interval applies again.
func TestRunHasABurst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{MinInterval: 10 * time.Second, Burst: 3, Resync: never})
		for n := 1; n <= 8; n++ {
			r.at(time.Duration(n) * time.Second)
			r.set(services(n))
		}

		r.at(time.Minute)
		require.Equal(t, seconds(1, 2, 3, 11), r.applies)
		requireHolds(t, r.Kernel(), services(8))
		for n := 1; n <= 4; n++ {
			r.set(services(n))
			synctest.Wait()
		}

		r.at(2 * time.Minute)
		require.Equal(t, seconds(1, 2, 3, 11, 60, 60, 60, 70), r.applies)
		requireHolds(t, r.Kernel(), services(4))
	})
}

func TestRunTriesAgainMoreAndMoreSeldom(t *testing.T) {
	for _, c := range []struct {
		name string
		opts dataplane.RunOptions
		want []time.Duration
	}{
		{"doubling up to the maximum", dataplane.RunOptions{RetryMin: time.Second,
			RetryMax: 4 * time.Second}, seconds(0, 1, 3, 7, 11)},
		{"the defaults", dataplane.RunOptions{}, []time.Duration{0, 100e6, 300e6, 700e6, 1500e6}},
		{"never sooner than the minimal interval", dataplane.RunOptions{MinInterval: time.Second},
			seconds(0, 1, 2, 3, 4)},
		{"a minimum above the maximum", dataplane.RunOptions{RetryMin: time.Minute},
			seconds(0, 60, 120, 180, 240)},
	} {
		bubble(t, c.name, func(t *testing.T) {
			c.opts.Resync = never
			r := run(t, c.opts)
			for range 2 { // the second time, the wait begins with the minimum again
				r.start, r.applies, r.errs = time.Now(), nil, nil
				r.Fail(memory.CallCommit, 4, errRefused)
				r.set(services(r.Kernel().Table().Len() + 1))
				r.at(time.Hour)
				requireTimes(t, c.want, r.applies)
				for i, err := range r.errs {
					require.Equal(t, i < 4, errors.Is(err, errRefused), "%d: %v", i, err)
				}
			}

			requireHolds(t, r.Kernel(), services(2))
		})
	}
}

func TestRunTriesANewStateAtOnceAfterAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{RetryMin: 10 * time.Second, Resync: never})
		r.Fail(memory.CallCommit, 2, errRefused)
		r.set(services(1))
		r.at(time.Second)
		r.set(services(2))
		r.at(2 * time.Second)
		require.Equal(t, seconds(0, 1), r.applies)
		require.Zero(t, r.Kernel().Table().Len())
		r.at(time.Minute)
		requireTimes(t, seconds(0, 1, 21), r.applies,
			"what is tried again is the newest, and later than the first time")
		requireHolds(t, r.Kernel(), services(2))
		require.Equal(t, servicemodel.Counts{Added: 2}, r.results[2].Counts)
	})
}

func TestRunReadsTheKernelPeriodically(t *testing.T) {
	for _, c := range []struct {
		name string
		opts dataplane.RunOptions
		want []time.Duration // of applies until the 16th minute
	}{
		{"every five minutes by default", dataplane.RunOptions{}, seconds(0, 300, 600, 900)},
		{"as often as asked for", dataplane.RunOptions{Resync: 7 * time.Minute},
			seconds(0, 420, 840)},
		{"not more often than the minimal interval", dataplane.RunOptions{Resync: time.Minute,
			MinInterval: 6 * time.Minute}, seconds(0, 360, 720)},
		{"never", dataplane.RunOptions{Resync: never}, seconds(0)},
	} {
		bubble(t, c.name, func(t *testing.T) {
			r := run(t, c.opts)
			r.set(services(1))
			r.at(16 * time.Minute)
			require.Equal(t, c.want, r.applies)
			for _, res := range r.results {
				require.True(t, res.Observed)
			}
			r.requireCalls(t, len(c.want), 1)
		})
	}
}

func TestRunRepairsWhatAResyncFindsAndRetriesIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: time.Minute, RetryMin: time.Second,
			CheckInterval: never})
		r.set(services(2))
		r.at(time.Second)
		r.Kernel().Flush()
		r.Fail(memory.CallCommit, 1, errRefused)
		r.at(62 * time.Second)
		requireTimes(t, seconds(0, 60, 61), r.applies)
		requireHolds(t, r.Kernel(), services(2))
		r.at(122 * time.Second)
		requireTimes(t, seconds(0, 60, 61, 121), r.applies)
	})
}

func TestRunDoesNothingBeforeTheFirstState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := run(t, dataplane.RunOptions{Resync: time.Second})
		r.at(time.Hour)
		require.Empty(t, r.applies)
		r.stop()
		r.requireCalls(t, 0, 0)
	})
}

// Infinite times and bursts do not overflow.
func TestRunTakesOptionsOfAnySize(t *testing.T) {
	for least, burst := range map[time.Duration]int{time.Second: math.MaxInt, -time.Hour: 9} {
		bubble(t, least.String(), func(t *testing.T) {
			r := run(t, dataplane.RunOptions{MinInterval: least, Burst: burst,
				RetryMin: math.MaxInt64, Resync: never, CheckInterval: never})
			r.Fail(memory.CallCommit, 9, errRefused)
			for n := 1; n <= 4; n++ {
				r.set(services(n))
				r.at(0)
			}

			r.at(time.Hour)
			require.Equal(t, seconds(0, 0, 0, 0), r.applies)
		})
	}
}
