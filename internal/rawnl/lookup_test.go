package rawnl

import (
	"context"
	"encoding/hex"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// lister is a fake kernel with the even numbers. It answers some numbers with an error.
type lister struct {
	room   int // the number of datagrams that its queue holds
	errnos map[uint32]syscall.Errno
}

// answer sends a datagram for each entry, and stops at the first missing entry of a message.
func (l *lister) answer(request messages) (data []any) {
	room := l.room
	add := func(p []byte) bool {
		room--
		switch {
		case room >= 0:
			data = append(data, p)
		case room == -1:
			data = append(data, errOverrun)
		}

		return room >= 0
	}

	for _, p := range request {
		it := Attrs(p.Body[genLen:])
		for it.Next() {
			if it.Type() != 3 {
				continue
			}
			for list := it.Nest(); list.Next(); {
				n := native.Uint32(list.Data())
				if errno := l.errnos[n]; errno != 0 || n%2 == 1 {
					if errno == 0 {
						errno = syscall.ENOENT
					}
					add(answer(p.Seq, errno, "", 0))
					break
				}

				r := reply(p.Seq, 0, uint16(n))
				if !add(r) {
					break
				}
			}
		}
	}

	return data
}

// asking writes messages, each of which asks for several numbers.
func asking(lists ...[]uint32) *Batch {
	var b Batch
	for i, l := range lists {
		b.Message(SubsysNFTables, 13, 0, 2, 0, Object{Verb: "read", Kind: "set",
			Name: fmt.Sprint(i)})
		b.Text(2, "s")
		list := b.Nest(3)
		for _, n := range l {
			b.NativeU32(1, n)
		}
		b.End(list)
	}

	return &b
}

func numbersTo(n uint32) []uint32 {
	var l []uint32
	for i := range n {
		l = append(l, i)
	}
	return l
}

// told checks that a lookup reports each entry of each list once, in order, and correctly.
func told(t *testing.T, lists [][]uint32) (fn func(i, entry int, m Message, found bool) error,
	done func()) {
	next := make([]int, len(lists))
	fn = func(i, entry int, m Message, found bool) error {
		require.Equal(t, next[i], entry)
		next[i]++
		n := lists[i][entry]
		require.Equal(t, n%2 == 0, found, "number %d", n)
		if found {
			require.EqualValues(t, n, m.ResID)
		}
		return nil
	}

	return fn, func() {
		for i, l := range lists {
			require.Equal(t, len(l), next[i], "list %d", i)
		}
	}
}

func TestLookupTellsOfEveryEntry(t *testing.T) {
	t.Parallel()
	odd := []uint32{1, 3, 5, 7}
	for name, lists := range map[string][][]uint32{
		"no message":               {},
		"an empty list":            {{}},
		"one that is there":        {{2}},
		"one that is not":          {{1}},
		"all are there":            {{0, 2, 4}, {6, 8}},
		"none is there":            {odd, odd},
		"first, middle and last":   {{1, 2, 3, 4, 5}, {2, 4, 5, 6}, {}, {8}},
		"more than one datagram":   {numbersTo(1000), {2}, numbersTo(300), odd},
		"many lists":               {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}},
		"a datagram exactly":       {numbersTo(lookupWindow)},
		"one more than a datagram": {numbersTo(lookupWindow + 1)},
	} {
		for _, room := range []int{1 << 20, 100, 7, 1} {
			t.Run(fmt.Sprintf("%s, room for %d", name, room), func(t *testing.T) {
				t.Parallel()
				c, kernel := dialFake(t, (&lister{room: room}).answer)
				limit(c, kernel, 0, max(room, 2)*ackSize) // the estimate may be too large
				b := asking(lists...)
				before := hex.EncodeToString(b.Bytes())
				fn, done := told(t, lists)
				require.NoError(t, c.Lookup(t.Context(), b, fn))
				done()
				require.Equal(t, before, hex.EncodeToString(b.Bytes()))
				if room > 1000 {
					n := 0
					for _, l := range lists {
						n += len(l)
					}
					require.LessOrEqual(t, len(kernel.Sent), n/2+1)
				}
			})
		}
	}
}

func TestLookupFitsTheSendBuffer(t *testing.T) {
	t.Parallel()
	lists := [][]uint32{numbersTo(10), numbersTo(3)}
	for _, size := range []int{40, 56, 100} {
		c, kernel := dialFake(t, (&lister{room: 100}).answer)
		limit(c, kernel, size, 0)
		fn, done := told(t, lists)
		require.NoError(t, c.Lookup(t.Context(), asking(lists...), fn))
		done()
		for _, p := range kernel.Sent {
			require.LessOrEqual(t, len(p), size)
		}
	}

	c, kernel := dialFake(t, (&lister{room: 100}).answer)
	limit(c, kernel, 39, 0)
	require.ErrorIs(t, c.Lookup(t.Context(), asking(lists...), nil), ErrBatchTooLarge)
}

// If there is no room for any answer, Lookup asks for fewer entries at once.
func TestLookupAsksForLess(t *testing.T) {
	t.Parallel()
	lists := [][]uint32{numbersTo(40)}
	l := &lister{room: 1 << 20}
	c, _ := dialFake(t, func(r messages) []any {
		if len(r[0].Body) > 10*8 {
			return []any{errOverrun}
		}
		return l.answer(r)
	})
	fn, done := told(t, lists)
	require.NoError(t, c.Lookup(t.Context(), asking(lists...), fn))
	done()
}

// silent sends no answers.
func silent(messages) []any { return nil }

// replying sends the result of make as the answer.
func replying(make func(seq uint32) any) func(messages) []any {
	return func(r messages) []any { return []any{make(r[0].Seq)} }
}

// failingLookups are answers to a lookup, and the error of the lookup.
var failingLookups = map[string]struct {
	answer func(messages) []any
	b      *Batch
	err    error
}{
	"refused": {
		(&lister{room: 100, errnos: map[uint32]syscall.Errno{4: syscall.EPERM}}).answer,
		asking([]uint32{2, 4}), syscall.EPERM},
	"no answer": {silent, asking([]uint32{2}), ErrAnswersLost},
	"no room": {replying(func(uint32) any {
		return errOverrun
	}), asking([]uint32{2}), ErrAnswersLost},
	"no room, it says": {replying(func(seq uint32) any {
		return answer(seq, syscall.ENOBUFS, "", 0)
	}), asking([]uint32{2}), ErrAnswersLost},
	"try again": {replying(func(seq uint32) any {
		return answer(seq, syscall.EAGAIN, "", 0)
	}), asking([]uint32{2}), ErrAnswersLost},
	"malformed": {replying(func(uint32) any {
		return []byte{1}
	}), asking([]uint32{2}), ErrMalformed},
	"without nfgenmsg": {replying(func(seq uint32) any {
		return reply(seq, 0, 0)[:headerLen]
	}), asking([]uint32{2}), ErrMalformed},
	"too large": {replying(func(seq uint32) any {
		return append(reply(seq, 0, 2), make([]byte, manySize)...)
	}), asking([]uint32{2}), ErrMalformed},
	"a short error": {replying(func(seq uint32) any {
		return done(seq, 0, 0)[:headerLen]
	}), asking([]uint32{2}), ErrMalformed},
	"the receiver's": {replying(func(uint32) any {
		return errEnough
	}), asking([]uint32{2}), errEnough},
	"the caller":  {(&lister{room: 100}).answer, asking([]uint32{8, 2}), errEnough},
	"the context": {(&lister{room: 100}).answer, asking([]uint32{1, 2}), context.Canceled},
	"not a list":  {silent, numbered(1), ErrBadBatch},
	"a bad batch": {silent, func() *Batch {
		b := asking([]uint32{2})
		b.Nest(3)
		return b
	}(), ErrBadBatch},
}

func TestLookupEndsWhereItCannotGoOn(t *testing.T) {
	t.Parallel()
	for name, tt := range failingLookups {
		ctx, cancel := context.WithCancel(t.Context())
		c, _ := dialFake(t, tt.answer)
		err := c.Lookup(ctx, tt.b, func(_, _ int, m Message, found bool) error {
			if !found {
				cancel()
			}
			if m.ResID == 8 {
				return errEnough
			}
			return nil
		})
		require.ErrorIs(t, err, tt.err, name)
		cancel()
	}
}

func TestLookupRefusalsNameTheirMessage(t *testing.T) {
	t.Parallel()
	c, _ := dialFake(t, (&lister{room: 100, errnos: map[uint32]syscall.Errno{4: syscall.EPERM}}).
		answer)
	err := c.Lookup(t.Context(), asking([]uint32{2}, []uint32{2, 1, 4}),
		func(int, int, Message, bool) error { return nil })
	require.EqualError(t, err, "read set 1: operation not permitted")
}

func TestLookupSkipsWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	c, _ := dialFake(t, func(r messages) []any {
		seq := r[0].Seq
		return []any{
			reply(seq-1, 0, 1), reply(seq+1, 0, 1), answer(seq-1, syscall.EPERM, "", 0),
			done(seq, 0, 0),
			append(reply(seq, 0, 2), reply(seq, 0, 9)...),
		}
	})
	fn, done := told(t, [][]uint32{{2}})
	require.NoError(t, c.Lookup(t.Context(), asking([]uint32{2}), fn))
	done()
}

// A lookup ends and reports no entry twice, whatever the kernel answers.
func FuzzLookup(f *testing.F) {
	f.Add(append(reply(1, 0, 2), answer(2, syscall.ENOENT, "", 0)...), 10)
	f.Add(answer(1, syscall.ENOBUFS, "no room", 8), 2000)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		c, _ := dialFake(t, func(messages) []any {
			return []any{data[:min(len(data), manySize, max(size, 0))]}
		})
		entries := map[[2]int]bool{}
		_ = c.Lookup(t.Context(), asking([]uint32{1, 2, 3}, []uint32{4, 5}),
			func(i, entry int, _ Message, _ bool) error {
				require.False(t, entries[[2]int{i, entry}])
				entries[[2]int{i, entry}] = true
				return nil
			})
	})
}

func TestLookupAsksForTheRest(t *testing.T) {
	t.Parallel()
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	lists := [][]uint32{{2, 1, 4}, {6}}
	c, kernel := dialFake(t, (&lister{room: 100}).answer)
	fn, done := told(t, lists)
	require.NoError(t, c.Lookup(t.Context(), asking(lists...), fn))
	done()
	require.Len(t, kernel.Sent, 2)
	head := func(length, seq string) string {
		return length + "000000 0d0a 0100 " + seq + "000000 00000000 02 00 0000 06000200 73000000"
	}
	entry := func(n string) string { return " 08000100 " + n + "000000" }
	require.Equal(t, unhex(t, head("38", "01")+" 1c000380"+entry("02")+entry("01")+entry("04")+
		head("28", "02")+" 0c000380"+entry("06")), kernel.Sent[0])
	require.Equal(t, unhex(t, head("28", "03")+" 0c000380"+entry("04")), kernel.Sent[1])
}
