package wait

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A grace period takes time: even an expedited one takes longer than a call that does nothing.
func TestGracePeriodsTakeTimeAndEnd(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() == 1 {
		t.Skip("needs two processors: with one, the kernel has nothing to wait for")
	}
	least := time.Hour
	for range 5 {
		start := time.Now()
		require.NoError(t, GracePeriod(t.Context()))
		least = min(least, time.Since(start))
	}

	require.Greater(t, least, 10*time.Microsecond)
}

func TestGracePeriodsReportTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, GracePeriod(ctx), why)
}
