package rawnl

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// errEnough is the error of a reader that wants no more messages.
var errEnough = errors.New("enough")

// dumps are answers to a dump, the number of replies that fn sees, and the error.
var dumps = []struct {
	name   string
	answer func(seq uint32) []any
	want   int
	err    error
}{
	{"all of it", func(seq uint32) []any {
		return []any{append(reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 7)...),
			reply(seq-1, 0, 3), done(seq, 0, 0)}
	}, 2, nil},
	{"nothing there", func(seq uint32) []any { return []any{done(seq, 0, 0)} }, 0, nil},
	{"refused", func(seq uint32) []any {
		return []any{answer(seq, syscall.ENOENT, "", 0)}
	}, 0, syscall.ENOENT},
	{"fails on the way", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), done(seq, 0, syscall.ENOENT)}
	}, 1, syscall.ENOENT},
	{"interrupted, says a message", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti|FlagIntr, 7),
			done(seq, 0, 0)}
	}, 1, ErrDumpInterrupted},
	{"interrupted, says the end", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), done(seq, FlagIntr, 0)}
	}, 1, ErrDumpInterrupted},
	{"interrupted, as the generation shows", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 8), done(seq, 0, 0)}
	}, 1, ErrDumpInterrupted},
	{"breaks off", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7)}
	}, 1, ErrAnswersLost},
	{"runs out of memory", func(seq uint32) []any {
		return []any{errOverrun}
	}, 0, ErrAnswersLost},
	{"the reader has enough", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 7),
			reply(seq, FlagMulti, 7), done(seq, 0, 0)}
	}, 2, errEnough},
	{"malformed", func(seq uint32) []any {
		return []any{[]byte{1}, done(seq, 0, 0)}
	}, 0, ErrMalformed},
}

func TestDumpsReadToTheEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range dumps {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, kernel := dialFake(t, func(r messages) []any {
				require.Equal(t, FlagRequest|FlagDump, r[0].Flags)
				return tt.answer(r[0].Seq)
			})
			n := 0
			err := c.Dump(t.Context(), numbered(1), func(Message) error {
				if n++; n == 2 && tt.err == errEnough {
					return errEnough
				}
				return nil
			})
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.want, n)

			kernel.Answer = func(r messages) []any { return []any{answer(r[1].Seq, 0, "", 0)} }
			require.NoError(t, c.Commit(t.Context(), numbered(1), 0),
				"what is left does not confuse the next one")
			require.Empty(t, kernel.Pending)
			require.Zero(t, c.dumpSeq)
		})
	}
}

// The kernel refuses another dump until an abandoned dump is read to its own end. An answer to an
// earlier request, which is still in the queue, is not that end.
func TestADumpThatWasGivenUpEndsWhereItEnds(t *testing.T) {
	t.Parallel()
	c, kernel := dialFake(t, func(r messages) []any {
		seq := r[0].Seq
		return []any{reply(seq, FlagMulti, 1), answer(seq-1, syscall.EPERM, "", 0),
			done(seq-1, 0, 0), reply(seq, FlagMulti, 1), done(seq, 0, 0)}
	})
	err := c.Dump(t.Context(), numbered(1), func(Message) error { return errEnough })
	require.ErrorIs(t, err, errEnough)
	kernel.Answer = func(r messages) []any {
		require.Empty(t, kernel.Pending, "the dump before was not read to its end")
		return []any{done(r[0].Seq, 0, 0)}
	}
	require.NoError(t, c.Dump(t.Context(), numbered(1), func(Message) error { return nil }))
}

func TestADumpGoesOnThroughInterruptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(seq uint32) []any
		want   int
		torn   bool
		err    error
	}{
		{"none", func(seq uint32) []any {
			return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 7), done(seq, 0, 0)}
		}, 2, false, nil},
		{"a message says so", func(seq uint32) []any {
			return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti|FlagIntr, 7),
				done(seq, 0, 0)}
		}, 2, true, nil},
		{"the end says so", func(seq uint32) []any {
			return []any{reply(seq, FlagMulti, 7), done(seq, FlagIntr, 0)}
		}, 1, true, nil},
		{"the generation shows it", func(seq uint32) []any {
			return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 8),
				reply(seq, FlagMulti, 8), done(seq, 0, 0)}
		}, 3, true, nil},
		{"refused all the same", func(seq uint32) []any {
			return []any{reply(seq, FlagMulti|FlagIntr, 7), done(seq, 0, syscall.ENOENT)}
		}, 1, true, syscall.ENOENT},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := dialFake(t, func(r messages) []any { return tt.answer(r[0].Seq) })
			n := 0
			torn, err := c.DumpThrough(t.Context(), numbered(1), func(Message) error {
				n++
				return nil
			})
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.torn, torn)
			require.Equal(t, tt.want, n)
			require.Zero(t, c.dumpSeq)
		})
	}
}

func TestDumpsGoOnThroughChangesOfOthers(t *testing.T) {
	t.Parallel()
	c, _ := dialFake(t, func(r messages) []any {
		seq := r[0].Seq
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti|FlagIntr, 8),
			done(seq, FlagIntr, 0)}
	})
	n := 0
	count := func(Message) error { n++; return nil }
	require.NoError(t, c.DumpOwn(t.Context(), numbered(1), count))
	require.Equal(t, 2, n)
	require.ErrorIs(t, c.Dump(t.Context(), numbered(1), count), ErrDumpInterrupted)
	require.ErrorIs(t, c.DumpOwn(t.Context(), numbered(2), count), ErrBadBatch)
}

func TestDumpsEndWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := dialFake(t, func(r messages) []any {
		cancel()
		return []any{reply(r[0].Seq, FlagMulti, 7), done(r[0].Seq, 0, 0)}
	})
	err := c.Dump(ctx, numbered(1), func(Message) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestWaitingForATurnEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, kernel := dialFake(t, func(r messages) []any {
		return []any{reply(r[0].Seq, 0, 1), done(r[0].Seq, 0, 0)}
	})
	require.NoError(t, c.Dump(t.Context(), numbered(1), func(Message) error {
		got := make(chan error)
		go func() { got <- c.Commit(ctx, numbered(1), 0) }()
		cancel()
		require.ErrorIs(t, <-got, context.Canceled)
		return nil
	}))
	require.Len(t, kernel.Sent, 1)
}
