package rawnl

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckSendsNoEnd(t *testing.T) {
	t.Parallel()
	refuse := false
	c, kernel := dialFake(t, func(r messages) []any {
		if refuse {
			return []any{answer(r[2].Seq, syscall.ENOENT, "", 0), answer(r[3].Seq, 0, "", 0)}
		}
		return []any{answer(r[len(r)-1].Seq, 0, "", 0)}
	})
	b := numbered(3)
	require.NoError(t, c.Check(t.Context(), b))
	require.Len(t, kernel.Sent[0], b.Size()-8-frameLen, "neither generation nor end")
	refuse = true
	require.EqualError(t, c.Check(t.Context(), b), "add set b: no such file or directory")
	require.NoError(t, c.Check(t.Context(), &Batch{}))
	require.Len(t, kernel.Sent, 2, "nothing to ask")
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Check(t.Context(), b), ErrClosed)
}
