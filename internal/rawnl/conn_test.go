package rawnl

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsWrongBeforehandIsNotSent(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, func(messages) []any { return nil })
	limit(c, kernel, 100, 0)
	bad := numbered(1)
	bad.Nest(3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.NoError(t, c.Commit(t.Context(), &Batch{}, 9), "an empty batch")
	require.ErrorIs(t, c.Commit(t.Context(), bad, 9), ErrBadBatch)
	require.ErrorIs(t, c.Commit(ctx, numbered(1), 9), context.Canceled)
	err := c.Commit(t.Context(), numbered(3), 9)
	require.ErrorIs(t, err, ErrBatchTooLarge)
	require.EqualError(t, err,
		"commit: the batch is too large for the socket's send buffer: 132 bytes, the limit is 100")
	var large *TooLargeError
	require.ErrorAs(t, err, &large)
	require.Equal(t, c.MaxBatch(), large.Limit)
	require.Equal(t, numbered(3).Size(), large.Size)

	_, err = c.Query(t.Context(), numbered(2))
	require.EqualError(t, err, "query: malformed batch: it has 2 messages, want 1")
	require.ErrorIs(t, c.Dump(t.Context(), &Batch{}, nil), ErrBadBatch)
	require.ErrorIs(t, errOf(c.SendAll(t.Context(), bad, nil)), ErrBadBatch)
	n := ok(c.SendAll(t.Context(), &Batch{}, nil))(t)
	require.Zero(t, n)
	require.Empty(t, kernel.Sent)
}

func TestClosedConnectionsSaySo(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, func(messages) []any { return nil })
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "once is as good as twice")
	require.True(t, kernel.Closed)
	require.ErrorIs(t, c.Commit(t.Context(), numbered(1), 0), ErrClosed)
	require.ErrorIs(t, errOf(c.GenID(t.Context())), ErrClosed)
	require.ErrorIs(t, c.Dump(t.Context(), numbered(1), nil), ErrClosed)
	require.Empty(t, kernel.Sent)
}

func TestSequenceNumbersAreNeverZero(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, nil)
	c.seq = 1<<32 - 3
	kernel.Answer = func(r messages) []any {
		for _, m := range r {
			require.NotZero(t, m.Seq)
		}
		return []any{answer(r[len(r)-2].Seq, 0, "", 0)}
	}

	require.NoError(t, c.Commit(t.Context(), numbered(3), 0))
	require.EqualValues(t, 6, c.seq, "they began again at 1")
}

func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c, kernel := dialFake(t, func(r messages) []any { return []any{answer(r[1].Seq, 0, "", 0)} })
	c.log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	require.NoError(t, c.Commit(t.Context(), numbered(1), 0))
	require.Contains(t, out.String(), `msg="netlink commit" messages=1 bytes=76`)
	kernel.Answer = func(r messages) []any { return []any{answer(r[1].Seq, syscall.EPERM, "", 0)} }
	require.Error(t, c.Commit(t.Context(), numbered(1), 0))
	require.Contains(t, out.String(), `error="add set a: operation not permitted"`)
}

func TestDialChecksItsArguments(t *testing.T) {
	t.Parallel()
	require.Error(t, errOf(Dial(&Config{NetNS: os.DevNull})), "that is no network namespace")
}
