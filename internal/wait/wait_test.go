package wait

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEndedIsTheContextsErrorAndItsCause(t *testing.T) {
	t.Parallel()
	require.NoError(t, Ended(t.Context()))
	why := errors.New("terminated signal received")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for _, err := range []error{Ended(ctx), For(ctx, time.Hour)} {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		require.EqualError(t, err, "context canceled: terminated signal received")
	}

	ctx, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	require.Equal(t, context.DeadlineExceeded, Ended(ctx))
}
