package rawnl

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// strange are messages that are no answer to a request.
var strange = []any{answer(1<<31, syscall.EIO, "", 0), reply(0, 0, 0), []byte{}}

// judgements are answers of the kernel to a commit of three messages, and the resulting errors.
var judgements = []struct {
	name   string
	answer func(r messages) []any
	want   string // the error, "" for none
	left   int    // datagrams that need not be read
}{
	{"the last message is acknowledged", func(r messages) []any {
		return []any{answer(r[3].Seq, 0, "", 0)}
	}, "", 0},
	{"answers to others are skipped", func(r messages) []any {
		return append(strange, answer(r[3].Seq, 0, "", 0))
	}, "", 0},
	{"other acknowledgements are skipped", func(r messages) []any {
		return []any{append(answer(r[0].Seq, 0, "", 0), answer(r[1].Seq, 0, "", 0)...),
			answer(r[3].Seq, 0, "", 0)}
	}, "", 0},
	{"the transaction is refused", func(r messages) []any {
		return []any{answer(r[0].Seq, syscall.EPERM, "", 0)}
	}, "commit transaction of 3 messages: operation not permitted", 0},
	{"the generation is not the same", func(r messages) []any {
		return []any{answer(r[0].Seq, errRestart, "", 0)}
	}, "commit transaction of 3 messages: the ruleset changed since it was read", 0},
	{"the generation is not the same when a module was loaded", func(r messages) []any {
		return []any{answer(r[2].Seq, errRestart, "", 0)}
	}, "commit transaction of 3 messages: the ruleset changed since it was read", 0},
	{"a message is refused", func(r messages) []any {
		return []any{answer(r[2].Seq, syscall.EBUSY, "in use", 20), answer(r[3].Seq, 0, "", 0)}
	}, "add set b: device or resource busy (in use)", 0},
	{"two messages are refused, the last of them", func(r messages) []any {
		return []any{answer(r[1].Seq, syscall.EBUSY, "", 0), answer(r[3].Seq, syscall.ENOENT,
			"", 0)}
	}, "add set a: device or resource busy; add set c: no such file or directory", 0},
	{"memory runs out", func(r messages) []any {
		return []any{answer(r[1].Seq, syscall.ENOMEM, "", 0)}
	}, "commit transaction of 3 messages: cannot allocate memory", 0},
	{"the commit itself fails", func(r messages) []any {
		return []any{answer(r[1].Seq, syscall.ENOMEM, "", 0), answer(r[3].Seq, 0, "", 0)}
	}, "commit transaction of 3 messages: cannot allocate memory", 0},
	{"there is no answer", func(messages) []any { return nil },
		"commit: answers of the kernel are missing", 0},
	{"the queue overflows", func(r messages) []any {
		return []any{errOverrun, answer(r[1].Seq, syscall.EBUSY, "", 0)}
	}, "add set a: device or resource busy\ncommit: answers of the kernel are missing", 0},
	{"an answer is lost, the last is not", func(r messages) []any {
		return []any{errOverrun, answer(r[3].Seq, 0, "", 0)}
	}, "commit: answers of the kernel are missing", 0},
	{"the answer is malformed", func(r messages) []any {
		return []any{answer(r[3].Seq, 0, "", 0)[:30], "unread"}
	}, "commit: malformed netlink message: it claims 36 bytes, 30 are there", 1},
	{"the answer is too long", func(r messages) []any {
		return []any{make([]byte, receiveSize+1)}
	}, "commit: malformed netlink message: a datagram of 65537 bytes, more than 65536", 0},
	{"the socket fails", func(r messages) []any { return []any{syscall.EIO} },
		"commit: input/output error", 0},
}

func TestCommitJudgesTheAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range judgements {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, kernel := dialFake(t, tt.answer)
			b := numbered(3)
			before := bytes.Clone(b.Bytes())
			err := c.Commit(t.Context(), b, 9)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tt.want)
			}

			require.Len(t, kernel.Pending, tt.left)
			for i := range 3 {
				native.PutUint32(b.At(i)[8:], 0)
			}
			require.Equal(t, before, b.Bytes(), "the batch is as it was but for the numbers")
		})
	}
}

func TestOnlyTheLastMessageOfACommitIsAcknowledged(t *testing.T) {
	t.Parallel()
	var flags []uint16
	c, kernel := dialFake(t, func(r messages) []any {
		for _, m := range r {
			flags = append(flags, m.Flags)
		}
		return []any{answer(r[len(r)-2].Seq, 0, "", 0)}
	})
	b := numbered(3)
	require.NoError(t, c.Commit(t.Context(), b, 0))
	require.Equal(t, []uint16{FlagRequest, FlagRequest, FlagRequest, FlagRequest | FlagAck,
		FlagRequest}, flags)
	require.Len(t, kernel.Sent[0], b.Size()-8, "no generation was given")
	require.NoError(t, c.Commit(t.Context(), b, 9))
	require.Len(t, kernel.Sent[1], b.Size())
}

func TestErrorsOfACommitAreFoundByTheirKind(t *testing.T) {
	t.Parallel()
	c, _ := dialFake(t, func(r messages) []any {
		if r[0].Seq == 1 {
			return []any{answer(r[0].Seq, errRestart, "", 0)}
		}
		return []any{answer(r[1].Seq, syscall.EEXIST, "", 0), answer(r[2].Seq, syscall.ENOENT,
			"none", 24), errOverrun}
	})
	err := c.Commit(t.Context(), numbered(2), 9)
	require.ErrorIs(t, err, ErrGenerationChanged)
	err = c.Commit(t.Context(), numbered(2), 9)
	var all OpErrors
	require.ErrorAs(t, err, &all)
	require.Equal(t, &OpError{Op: "add", Object: "set b", Index: 1, Errno: syscall.ENOENT,
		ExtAck: "none", Offset: 24}, all[1])
	var one *OpError
	require.ErrorAs(t, err, &one)
	require.Equal(t, 0, one.Index)
	require.ErrorIs(t, err, syscall.ENOENT)
}

func TestManyErrorsAreToldInAFew(t *testing.T) {
	t.Parallel()
	c, _ := dialFake(t, func(r messages) []any {
		var data []any
		for _, m := range r[1 : len(r)-1] {
			data = append(data, answer(m.Seq, syscall.ENOENT, "", 0))
		}
		return data
	})
	err := c.Commit(t.Context(), numbered(10), 0)
	require.EqualError(t, err,
		"add set a: no such file or directory; add set b: no such file or directory; "+
			"add set c: no such file or directory; and 7 more")
	var all OpErrors
	require.ErrorAs(t, err, &all)
	require.Len(t, all, 10)
}
