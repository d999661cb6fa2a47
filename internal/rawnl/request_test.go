package rawnl

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestsAreSplitToFit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		size, queue int
		want        []int // messages in each datagram
	}{
		{"all at once", 1 << 20, 1 << 20, []int{10}},
		{"by the send buffer", 28 * 4, 1 << 20, []int{4, 4, 2}},
		{"by the receive buffer", 1 << 20, 3 * ackSize, []int{3, 3, 3, 1}},
		{"one by one at least", 28, 10, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []int
			c, kernel := dialFake(t, func(r messages) []any {
				got = append(got, len(r))
				for _, m := range r[:len(r)-1] {
					require.Zero(t, m.Flags&FlagAck)
				}
				var data []any
				if len(r) > 1 {
					data = append(data, answer(r[1].Seq, syscall.EEXIST, "", 0),
						reply(r[1].Seq, 0, 0))
				}

				return append(data, answer(r[len(r)-1].Seq, 0, "", 0))
			})
			limit(c, kernel, tt.size, tt.queue)
			done, err := c.SendAll(t.Context(), numbered(10), nil)
			require.Equal(t, 10, done)
			require.Equal(t, tt.want, got)
			var want []int
			at := 0
			for _, n := range tt.want {
				if n > 1 {
					want = append(want, at+1)
				}
				at += n
			}

			require.Equal(t, want, refused(err))
		})
	}
}

// refused returns the indices of the refused messages in err.
func refused(err error) (index []int) {
	for _, e := range Refusals(err) {
		index = append(index, e.Index)
	}
	return index
}

func TestSendAllStopsWhereItCannotGoOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, kernel := dialFake(t, func(r messages) []any {
		cancel()
		return []any{answer(r[0].Seq, syscall.EEXIST, "", 0), answer(r[1].Seq, 0, "", 0)}
	})
	limit(c, kernel, 0, 2*ackSize)
	done, err := c.SendAll(ctx, numbered(5), nil)
	require.Equal(t, 2, done)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{0}, refused(err))

	c, kernel = dialFake(t, func(messages) []any { return []any{errOverrun} })
	done, err = c.SendAll(t.Context(), numbered(5), nil)
	require.Zero(t, done)
	require.EqualError(t, err,
		"send: 0 of 5 messages were answered: answers of the kernel are missing")
	kernel.Answer = func(messages) []any { return nil }
	require.ErrorIs(t, errOf(c.SendAll(t.Context(), numbered(5), nil)), ErrAnswersLost)
	limit(c, kernel, 20, 0)
	require.ErrorIs(t, errOf(c.SendAll(t.Context(), numbered(5), nil)), ErrBatchTooLarge)
}

func TestQueryReturnsCopiesOfTheReplies(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, func(r messages) []any {
		require.Equal(t, FlagRequest|FlagAck, r[0].Flags)
		return []any{
			append(reply(r[0].Seq, 0, 1), reply(r[0].Seq, 0, 2)...),
			reply(r[0].Seq-1, 0, 3),
			answer(r[0].Seq, 0, "", 0),
		}
	})
	got := ok(c.Query(t.Context(), numbered(1)))(t)
	require.Len(t, got, 2)
	require.EqualValues(t, 2, got[1].ResID)

	kernel.Answer = func(r messages) []any {
		return []any{answer(r[0].Seq, syscall.ENOENT, "no", 0)}
	}
	_, err := c.Query(t.Context(), numbered(1))
	require.EqualError(t, err, "add set a: no such file or directory (no)")
	kernel.Answer = func(r messages) []any { return []any{reply(r[0].Seq, 0, 1)} }
	_, err = c.Query(t.Context(), numbered(1))
	require.ErrorIs(t, err, ErrAnswersLost, "without an acknowledgement there might have been more")
	kernel.Answer = func(r messages) []any { return []any{answer(r[0].Seq, 0, "", 0)} }
	_, err = c.GenID(t.Context())
	require.EqualError(t, err, "get generation of the ruleset: malformed netlink message: no reply")
}

func TestRepliesFindTheirRequests(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, func(r messages) []any {
		var data []any
		for i, m := range r {
			if i%2 == 0 {
				data = append(data, reply(m.Seq, 0, uint16(i)))
			} else {
				data = append(data, answer(m.Seq, syscall.ENOENT, "", 0))
			}
		}

		return append(data, answer(r[len(r)-1].Seq, 0, "", 0))
	})
	limit(c, kernel, 0, 5*ackSize)
	var got []int
	_, err := c.SendAll(t.Context(), numbered(9), func(i int, m Message) error {
		require.EqualValues(t, i%5, m.ResID)
		got = append(got, i)
		return nil
	})
	require.Equal(t, []int{0, 2, 4, 5, 7}, got)
	require.Equal(t, []int{1, 3, 6, 8}, refused(err))
	require.Len(t, kernel.Sent, 2)

	enough := errors.New("enough")
	_, err = c.SendAll(t.Context(), numbered(9), func(int, Message) error { return enough })
	require.ErrorIs(t, err, enough)
}
