package rcu

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	require.NoError(t, Wait(t.Context()))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, Wait(ctx), why)
}

func BenchmarkWait(b *testing.B) {
	for b.Loop() {
		_ = Wait(b.Context())
	}
}
