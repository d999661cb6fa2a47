package wait

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGracePeriodsEnd(t *testing.T) {
	t.Parallel()
	require.NoError(t, GracePeriod(t.Context()))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, GracePeriod(ctx), why)
}

func BenchmarkGracePeriod(b *testing.B) {
	for b.Loop() {
		_ = GracePeriod(b.Context())
	}
}
