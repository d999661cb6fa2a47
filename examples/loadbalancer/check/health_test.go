package check

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each letter of answers is a check that passed (+) or failed (-); each of want is the verdict
// after it.
func TestVerdictsTakeSeveralAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before        State
		answers, want string
	}{
		{"the first answer decides", Unknown, "+", "U"},
		{"also if it is bad", Unknown, "-+", "DD"},
		{"three failures in a row", Up, "---", "UUD"},
		{"a success in between starts anew", Up, "--+---", "UUUUUD"},
		{"two successes in a row", Down, "+-++", "DDDU"},
		{"who flaps keeps the verdict", Up, "-+--+-+--+", "UUUUUUUUUU"},
		{"whatever it was", Down, "+-+-+-", "DDDDDD"},
	} {
		w := watch{report: Report{Target: Target{Spec: Spec{Rise: 2, Fall: 3}}, State: c.before}}
		var got strings.Builder
		for _, a := range c.answers {
			before := w.report.State
			require.Equal(t, w.hear(a == '+'), w.report.State != before, c.name)
			got.WriteString(strings.ToUpper(w.report.State.String()[:1]))
		}
		require.Equal(t, c.want, got.String(), c.name)
	}
}

// A server that fails is down after what is left of an interval, and a retry: in the median after
// half an interval and a retry, and never after more than a whole one. keepalived needs as long.
func TestFailuresAreNoticedWithinAnIntervalAndARetry(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("Go 1.26.8: the race detector fails with so many goroutines in a bubble")
	}
	synctest.Test(t, func(t *testing.T) {
		const servers = 1000
		spec := Spec{Type: TCP, Interval: 2 * time.Second, Retry: time.Second / 2, Fall: 2}
		begin, took := time.Now(), make(chan time.Duration, servers)
		// The servers fail one after the other, so that their failures have any distance from a
		// check.
		failed := func(t Target) time.Duration {
			return time.Since(begin) - time.Minute -
				time.Duration(t.Addr.Port())*t.Spec.Interval/servers
		}
		m := NewMonitor(func(r Report) {
			if r.State == Down {
				took <- failed(r.Target)
			}
		})
		defer m.Close()
		m.ask = func(_ context.Context, t Target) error {
			if failed(t) >= 0 {
				return errors.New("refused")
			}
			return nil
		}
		targets := map[Target]State{}
		for port := range uint16(servers) {
			targets[spec.Target(netip.AddrPortFrom(netip.IPv6Loopback(), port))] = Unknown
		}
		m.Set(targets, servers)
		all := make([]time.Duration, servers)
		for i := range all {
			all[i] = <-took
		}
		slices.Sort(all)
		require.GreaterOrEqual(t, all[0], spec.Retry)
		require.LessOrEqual(t, all[servers/2], spec.Interval/2+spec.Retry)
		require.LessOrEqual(t, all[servers-1], spec.Interval+spec.Retry)
	})
}
