package checks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

var errRefused = errors.New("refused")

// at returns the target of a check at a port.
func at(c checks.Check, port int) checks.Target {
	c.Type = checks.TCP
	return c.Target(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port)))
}

// run starts a monitor, and returns it with a function that stops it.
func run(t *testing.T, cfg *checks.Config) (*checks.Monitor, func()) {
	t.Helper()
	m := ok(checks.New(cfg))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return m, func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// Each character of answers is a check that passed (+) or failed (-). Each character of want is the
// state after that check.
func TestStatesTakeSeveralAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before        checks.State
		answers, want string
	}{
		{"the first answer decides", checks.Unknown, "+", "U"},
		{"also if it is bad", checks.Unknown, "-+", "DD"},
		{"three failures in a row", checks.Up, "---", "UUD"},
		{"a success in between starts anew", checks.Up, "--+---", "UUUUUD"},
		{"two successes in a row", checks.Down, "+-++", "DDDU"},
		{"a target that flaps keeps its state", checks.Up, "-+--+-+--+", "UUUUUUUUUU"},
		{"whatever it was", checks.Down, "+-+-+-", "DDDDDD"},
	} {
		synctest.Test(t, func(t *testing.T) {
			answers := []byte(c.answers)
			m, stop := run(t, &checks.Config{Ask: func(context.Context, checks.Target) error {
				answer := answers[0]
				answers = answers[1:]
				if answer == '+' {
					return nil
				}
				return errRefused
			}})
			target := at(checks.Check{Interval: time.Second, Jitter: -1}, 1)
			require.NoError(t, m.Set(map[checks.Target]checks.State{target: c.before}))
			var got []byte
			for range c.answers {
				synctest.Wait()
				got = append(got, m.State(target).String()[0]-'a'+'A')
				if len(got) < len(c.answers) {
					time.Sleep(time.Second)
				}
			}

			require.Equal(t, c.want, string(got), c.name)
			stop()
		})
	}
}

// A server that fails is down after the rest of an interval and a retry: in the median after about
// half an interval and a retry, and never after more than a whole interval and a retry. keepalived
// takes the same time.
func TestFailuresAreNoticedWithinAnIntervalAndARetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const servers = 300
		c := checks.Check{Interval: 2 * time.Second, Retry: time.Second / 2, Fall: 2}
		begin, took := time.Now(), make(chan time.Duration, servers)

		// The servers fail one after the other, at different times between two checks.
		failed := func(t checks.Target) time.Duration {
			return time.Since(begin) - time.Minute -
				time.Duration(t.Addr().Port())*c.Interval/servers
		}

		m, stop := run(t, &checks.Config{Changed: func(r checks.Report) {
			if r.State == checks.Down {
				took <- failed(r.Target)
			}
		}, Ask: func(_ context.Context, t checks.Target) error {
			if failed(t) >= 0 {
				return errRefused
			}
			return nil
		}})
		targets := map[checks.Target]checks.State{}
		for port := 1; port <= servers; port++ {
			targets[at(c, port)] = checks.Unknown
		}
		require.NoError(t, m.Set(targets))
		all := make([]time.Duration, servers)
		for i := range all {
			all[i] = <-took
		}
		stop()
		slices.Sort(all)
		require.GreaterOrEqual(t, all[0], c.Retry)
		require.LessOrEqual(t, all[servers/2], c.Interval/2+c.Retry+c.Interval/20)
		require.LessOrEqual(t, all[servers-1], c.Interval+c.Retry)
	})
}

// An interval is from start to start, and jitter shortens it.
func TestChecksFollowTheirSchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, steady := time.Now(), []time.Duration(nil)
		var early, on int
		var last time.Time
		m, stop := run(t, &checks.Config{Ask: func(_ context.Context, of checks.Target) error {
			time.Sleep(time.Second / 4)
			if of.Addr().Port() == 1 {
				steady = append(steady, time.Since(begin)-time.Second/4)
				return nil
			}

			if gap := time.Since(last); !last.IsZero() {
				on++
				require.LessOrEqual(t, gap, time.Second)
				require.Greater(t, gap, time.Second*3/5)
				if gap < time.Second*4/5 {
					early++
				}
			}

			last = time.Now()
			return nil
		}})
		require.NoError(t, m.Set(map[checks.Target]checks.State{
			at(checks.Check{Interval: time.Second, Jitter: -1}, 1):                  checks.Unknown,
			at(checks.Check{Interval: time.Second, Jitter: time.Second * 2 / 5}, 2): checks.Unknown,
		}))
		time.Sleep(100*time.Second + time.Second/2)
		stop()
		require.Len(t, steady, 101)
		for i, d := range steady {
			require.Equal(t, time.Duration(i)*time.Second, d)
		}
		require.Greater(t, on, 100)
		require.InDelta(t, on/2, early, float64(on)/3, "half of them are early by a fifth or more")
	})
}

// A new set leaves existing targets alone, and ends the checks of removed targets, even a check
// that hangs.
func TestTargetsChangeWhileTheMonitorRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		cancelled := 0
		m, stop := run(t, &checks.Config{Changed: func(r checks.Report) {
			told = append(told, fmt.Sprint(r.Target, " ", r.State))
		}, Ask: func(ctx context.Context, of checks.Target) error {
			if of.Addr().Port() == 9 {
				<-ctx.Done()
				cancelled++
			}

			return ctx.Err()
		}})
		day := checks.Check{Interval: 24 * time.Hour, Timeout: time.Hour}
		stays, leaves, hangs, comes := at(day, 1), at(day, 2), at(day, 9), at(day, 3)
		require.NoError(t, m.Set(map[checks.Target]checks.State{stays: checks.Unknown,
			leaves: checks.Unknown, hangs: checks.Down}))
		synctest.Wait()
		require.ElementsMatch(t, []string{"tcp 10.0.0.1:1 up", "tcp 10.0.0.1:2 up"}, told)
		require.NoError(t, m.Set(map[checks.Target]checks.State{stays: checks.Down,
			comes: checks.Unknown}))
		synctest.Wait()
		require.Equal(t, 1, cancelled)
		require.Equal(t, []string{"tcp 10.0.0.1:3 up"}, told[2:])
		require.Equal(t, checks.Up, m.State(stays))
		require.Equal(t, checks.Unknown, m.State(leaves))
		require.Len(t, m.Reports(), 2)
		require.NoError(t, m.Set(nil))
		require.Empty(t, m.Reports())
		stop()
	})
}

// The number of checks at a time stays within the limit, and a target that waits for its turn does
// not fail.
func TestChecksAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, peak atomic.Int64
		m, stop := run(t, &checks.Config{Concurrency: 3,
			Ask: func(context.Context, checks.Target) error {
				peak.Store(max(peak.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				return nil
			}})
		all := map[checks.Target]checks.State{}
		for port := range 20 {
			all[at(checks.Check{Interval: time.Hour}, 1+port)] = checks.Unknown
		}
		require.NoError(t, m.Set(all))
		up := func() (n int) {
			synctest.Wait()
			for _, r := range m.Reports() {
				require.NotEqual(t, checks.Down, r.State)
				n += int(r.Passed)
			}

			return n
		}

		require.Zero(t, up())
		time.Sleep(time.Second)
		require.Equal(t, 3, up())
		require.NoError(t, m.SetConcurrency(10))
		time.Sleep(time.Second)
		require.Equal(t, 13, up())
		time.Sleep(time.Second)
		require.Equal(t, 20, up())
		require.EqualValues(t, 10, peak.Load())
		stop()
	})
}

// Run ends its goroutines, keeps the states, and can be called again. The test would not end if a
// goroutine of the monitor were left.
func TestRunEndsAllChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := true
		m, stop := run(t, &checks.Config{Ask: func(ctx context.Context, _ checks.Target) error {
			if hang {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		target := at(checks.Check{Timeout: time.Hour}, 1)
		require.NoError(t, m.Set(map[checks.Target]checks.State{target: checks.Down}))
		synctest.Wait()
		require.ErrorContains(t, m.Run(t.Context()), "while it runs")
		stop()
		require.Equal(t, checks.Down, m.State(target))
		require.Zero(t, m.Reports()[0].Failed, "a check that was ended is no failure")

		hang = false
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, m.Run(ctx), context.DeadlineExceeded)
		require.Equal(t, checks.Up, m.State(target))
	})
}

// Calls of Changed do not overlap, and Changed may call the monitor.
func TestChangesAreToldOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside, told := false, 0
		var m *checks.Monitor
		m, stop := run(t, &checks.Config{Changed: func(r checks.Report) {
			require.False(t, inside)
			inside = true
			time.Sleep(time.Second)
			require.Equal(t, r.State, m.State(r.Target))
			inside = false
			if told++; told == 5 {
				require.NoError(t, m.Set(nil))
			}
		}, Ask: func(context.Context, checks.Target) error { return nil }})
		all := map[checks.Target]checks.State{}
		for port := range 5 {
			all[at(checks.Check{}, 1+port)] = checks.Unknown
		}
		require.NoError(t, m.Set(all))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 5, told)
		require.Empty(t, m.Reports())
		stop()
	})
}

// The timeout of a check ends it, whatever it waits for.
func TestTimeoutsEndChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := ok(checks.New(&checks.Config{Ask: func(ctx context.Context, _ checks.Target) error {
			<-ctx.Done()
			return ctx.Err()
		}}))(t)
		begin := time.Now()
		require.ErrorIs(t, m.Ask(t.Context(), at(checks.Check{}, 1)), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begin))
	})
}

// Wrong targets are named with their fields, and change nothing.
func TestWrongTargetsAreNamed(t *testing.T) {
	t.Parallel()
	m := ok(checks.New(nil))(t)
	right := at(checks.Check{}, 1)
	require.NoError(t, m.Set(map[checks.Target]checks.State{right: checks.Unknown}))
	err := m.Set(map[checks.Target]checks.State{
		{}:                    checks.Unknown,
		at(checks.Check{}, 0): checks.Unknown,
		at(checks.Check{Interval: 1, Retry: time.Second, Path: "x"}, 1): checks.Unknown,
		at(checks.Check{Source: netip.IPv6Loopback()}, 1):               checks.Unknown,
	})
	require.EqualError(t, err, ""+
		`check  invalid AddrPort: address: is missing, and the endpoint has none
check  invalid AddrPort: type: must be tcp, http, https, grpc or udp
check tcp 10.0.0.1:0: port: is missing, and the endpoint has none
check tcp 10.0.0.1:1: source: ::1: is not of the family of 10.0.0.1
check tcp 10.0.0.1:1x: interval: 1ns: must be at least 1ms
check tcp 10.0.0.1:1x: path: x: is only for http and https`)
	var field *servicemodel.FieldError
	require.ErrorAs(t, err, &field)
	require.Len(t, m.Reports(), 1)

	_, err = checks.New(&checks.Config{Concurrency: -1})
	require.EqualError(t, err, "checks: Concurrency: -1: must not be negative")
	_, err = checks.New(&checks.Config{NetNS: "/no/such"})
	require.ErrorContains(t, err, "checks: n") // no such file, or namespaces are not supported
}

func TestReportsAsJSON(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 27, 18, 0, 0, 0, time.UTC)
	down := checks.Report{Target: at(checks.Check{}, 80), State: checks.Down, Since: since,
		Err: errRefused, Passed: 1, Failed: 3, Took: 2 * time.Millisecond}
	for want, r := range map[string]checks.Report{
		`{"target":"tcp 10.0.0.1:80","state":"down","since":"2026-11-27T18:00:00Z",` +
			`"error":"refused","passed":1,"failed":3,"took":"2ms"}`: down,
		`{"target":"tcp 10.0.0.1:81","state":"unknown","passed":0,"failed":0,"took":"0s"}`: {
			Target: at(checks.Check{}, 81)},
	} {
		require.JSONEq(t, want, string(ok(json.Marshal(r))(t)))
	}
}
