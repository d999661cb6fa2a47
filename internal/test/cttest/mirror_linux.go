package cttest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
)

// Runner is a mirror of package mirror. This package cannot import that package, because the tests
// there import this one.
type Runner interface{ Run(context.Context) error }

// RunMirror runs a mirror of a table until the test ends or calls stop.
func RunMirror(tb testing.TB, table *conntrack.Table, x Runner) (stop func()) {
	tb.Helper()
	_, err := table.Usage(context.Background()) // loads conntrack
	if err = errors.Join(err, table.CheckEvents()); err != nil {
		// before Linux 5.19, user namespaces do not see the setting
		tb.Skipf("the kernel makes no events in this namespace: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(tb, <-done)
		}
	}
	tb.Cleanup(stop)
	return stop
}

// WaitFor waits until so returns true. This may take long if the table is large.
func WaitFor(tb testing.TB, so func() bool) {
	tb.Helper()
	require.Eventually(tb, so, 5*time.Minute, time.Millisecond)
}
