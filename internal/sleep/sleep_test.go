package sleep

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestForEndsWithTheTimeOrTheContext(t *testing.T) {
	t.Parallel()
	start := time.Now()
	require.NoError(t, For(t.Context(), 2*time.Millisecond))
	require.GreaterOrEqual(t, time.Since(start), 2*time.Millisecond)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, For(ctx, time.Hour), why)
}
