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

// dumps are answers to a dump. For Dump and for DumpThrough, each has the number of replies that fn
// sees and the error. DumpOwn behaves like DumpThrough.
var dumps = []struct {
	name       string
	answer     func(seq uint32) []any
	seen       int
	err        error
	through    int
	torn       bool
	throughErr error
}{
	{"all of it", func(seq uint32) []any {
		return []any{append(reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 7)...),
			reply(seq-1, 0, 3), done(seq, 0, 0)}
	}, 2, nil, 2, false, nil},
	{"nothing there", func(seq uint32) []any { return []any{done(seq, 0, 0)} },
		0, nil, 0, false, nil},
	{"refused", func(seq uint32) []any { return []any{answer(seq, syscall.ENOENT, "", 0)} },
		0, syscall.ENOENT, 0, false, syscall.ENOENT},
	{"fails on the way", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), done(seq, 0, syscall.ENOENT)}
	}, 1, syscall.ENOENT, 1, false, syscall.ENOENT},
	{"interrupted, says a message", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti|FlagIntr, 7), done(seq, 0, 0)}
	}, 1, ErrDumpInterrupted, 2, true, nil},
	{"interrupted, says the end", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), done(seq, FlagIntr, 0)}
	}, 1, ErrDumpInterrupted, 1, true, nil},
	{"interrupted, as the generation shows", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, 7), reply(seq, FlagMulti, 8), done(seq, 0, 0)}
	}, 1, ErrDumpInterrupted, 2, true, nil},
	{"interrupted and refused", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti|FlagIntr, 7), done(seq, 0, syscall.ENOENT)}
	}, 0, ErrDumpInterrupted, 1, true, syscall.ENOENT},
	{"breaks off", func(seq uint32) []any { return []any{reply(seq, FlagMulti, 7)} },
		1, ErrAnswersLost, 1, false, ErrAnswersLost},
	{"runs out of memory", func(seq uint32) []any { return []any{errOverrun} },
		0, ErrAnswersLost, 0, false, ErrAnswersLost},
	{"the reader has enough", func(seq uint32) []any {
		return []any{reply(seq, FlagMulti, enough), reply(seq, FlagMulti, enough), done(seq, 0, 0)}
	}, 1, errEnough, 1, false, errEnough},
	{"malformed", func(seq uint32) []any { return []any{[]byte{1}, done(seq, 0, 0)} },
		0, ErrMalformed, 0, false, ErrMalformed},
}

// enough is the generation of the reply at which the reader of dumps gives up.
const enough = 99

func TestDumpsReadToTheEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range dumps {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, kernel := dialFake(t, nil)
			seen := 0
			fn := func(m Message) error {
				if seen++; m.ResID == enough {
					return errEnough
				}
				return nil
			}

			dumping := func(r messages) []any {
				require.Equal(t, FlagRequest|FlagDump, r[0].Flags)
				return tt.answer(r[0].Seq)
			}

			kernel.Answer = dumping
			require.ErrorIs(t, c.Dump(t.Context(), numbered(1), fn), tt.err)
			require.Equal(t, tt.seen, seen)
			kernel.Answer = func(r messages) []any { return []any{answer(r[1].Seq, 0, "", 0)} }
			require.NoError(t, c.Commit(t.Context(), numbered(1), 0),
				"what is left does not confuse the next one")
			require.Empty(t, kernel.Pending)
			require.Zero(t, c.dumpSeq)

			seen, kernel.Answer = 0, dumping
			torn, err := c.DumpThrough(t.Context(), numbered(1), fn)
			require.ErrorIs(t, err, tt.throughErr)
			require.Equal(t, tt.torn, torn)
			require.Equal(t, tt.through, seen)
			seen = 0
			require.ErrorIs(t, c.DumpOwn(t.Context(), numbered(1), fn), tt.throughErr)
			require.Equal(t, tt.through, seen)
		})
	}
}

// The kernel refuses another dump until an abandoned dump is read to its end. An answer to an
// earlier request that is still in the queue is not that end.
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
