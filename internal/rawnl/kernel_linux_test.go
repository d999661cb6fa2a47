package rawnl

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// Messages and attributes of nf_tables (include/uapi/linux/netfilter/nf_tables.h).
const (
	familyIPv4 = unix.NFPROTO_IPV4

	setKeyLen = 4 // of the sets here: one number
	setID     = 1

	tableUserData = 6 // NFTA_TABLE_USERDATA
)

// appendTable writes a message that adds the table t.
func appendTable(b *Batch, flags uint16) {
	b.Message(SubsysNFTables, unix.NFT_MSG_NEWTABLE, FlagCreate|flags, familyIPv4, 0,
		Object{Verb: "add", Kind: "table", Name: "ip t"})
	b.Text(unix.NFTA_TABLE_NAME, "t")
}

// appendSet writes a message that adds the set s of numbers to the table t.
func appendSet(b *Batch) {
	b.Message(SubsysNFTables, unix.NFT_MSG_NEWSET, FlagCreate, familyIPv4, 0, testObject)
	b.Text(unix.NFTA_SET_TABLE, "t")
	b.Text(unix.NFTA_SET_NAME, "s")
	b.U32(unix.NFTA_SET_KEY_TYPE, 0)
	b.U32(unix.NFTA_SET_KEY_LEN, setKeyLen)
	b.U32(unix.NFTA_SET_ID, setID)
}

// appendRange writes the numbers from begin to end as elements of the set s, in as many messages as
// necessary.
func appendRange(b *Batch, begin, end uint32) {
	const elementSize = 16
	perMessage := uint32((MaxAttr - attrHeaderLen) / elementSize)
	for ; begin < end; begin += perMessage {
		var numbers []uint32
		for n := begin; n < min(begin+perMessage, end); n++ {
			numbers = append(numbers, n)
		}
		appendNumbers(b, 0, numbers...)
	}
}

// requestSet writes a request for the elements of the set s.
func requestSet(b *Batch) {
	b.Reset()
	b.Message(SubsysNFTables, unix.NFT_MSG_GETSETELEM, 0, familyIPv4, 0,
		Object{Verb: "list", Kind: "set", Name: "s", Within: "table ip t"})
	b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, "t")
	b.Text(unix.NFTA_SET_ELEM_LIST_SET, "s")
}

// readNumbers adds the numbers in a message of a set dump to seen. A repeated number means that the
// kernel rehashed the set during the dump, see [Conn.Dump].
func readNumbers(m Message, seen map[uint32]bool) error {
	it := Attrs(m.Attrs)
	for it.Next() {
		if it.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for list := it.Nest(); list.Next(); {
			for elem := list.Nest(); elem.Next(); {
				value := elem.Nest()
				if elem.Type() != unix.NFTA_SET_ELEM_KEY || !value.Next() {
					continue
				}
				if seen[value.U32()] {
					return ErrDumpInterrupted
				}
				seen[value.U32()] = true
			}
		}
	}

	return it.Err()
}

// dumpNumbers returns the elements of the set s. It reads again while the kernel rehashes the set.
func dumpNumbers(t testing.TB, c *Conn) (seen map[uint32]bool) {
	t.Helper()
	var req Batch
	requestSet(&req)
	for try := range 50 {
		time.Sleep(time.Duration(try) * time.Millisecond)
		seen = map[uint32]bool{}
		err := c.Dump(t.Context(), &req, func(m Message) error { return readNumbers(m, seen) })
		if !errors.Is(err, ErrDumpInterrupted) {
			require.NoError(t, err)
			return seen
		}
	}

	require.FailNow(t, "the dump was interrupted again and again")
	return nil
}

// getNumber asks for one element of the set s.
func getNumber(t testing.TB, c *Conn, number uint32) ([]Message, error) {
	t.Helper()
	var req Batch
	appendNumbers(&req, 0, number)
	native.PutUint16(req.Bytes()[4:], uint16(SubsysNFTables)<<8|unix.NFT_MSG_GETSETELEM)
	native.PutUint16(req.Bytes()[6:], FlagRequest)
	return c.Query(t.Context(), &req)
}

// tables returns the names of the tables.
func tables(t testing.TB, c *Conn) []string {
	t.Helper()
	var req Batch
	req.Message(SubsysNFTables, unix.NFT_MSG_GETTABLE, 0, 0, 0,
		Object{Verb: "list", Kind: "tables"})
	var names []string
	require.NoError(t, c.Dump(t.Context(), &req, func(m Message) error {
		for it := Attrs(m.Attrs); it.Next(); {
			if it.Type() == unix.NFTA_TABLE_NAME {
				names = append(names, it.Text())
			}
		}

		return nil
	}))

	return names
}

// generation returns the generation of the ruleset.
func generation(t testing.TB, c *Conn) uint32 {
	t.Helper()
	g := ok(c.GenID(t.Context()))(t)
	return g.ID
}

// commitNumbers creates the table and the set with n numbers, in transactions that are small enough
// for a socket without privileges.
func commitNumbers(t testing.TB, c *Conn, n uint32) {
	t.Helper()
	const step = 20_000
	var b Batch
	appendTable(&b, 0)
	appendSet(&b)
	for begin := uint32(0); begin < n; begin += step {
		appendRange(&b, begin, min(begin+step, n))
		require.NoError(t, c.Commit(t.Context(), &b, 0))
		b.Reset()
	}

	require.NoError(t, c.Commit(t.Context(), &b, 0))
}

func TestKernelAppliesOneTransaction(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	before := ok(c.GenID(t.Context()))(t)
	require.NotZero(t, before.ProcPID)
	require.NotEmpty(t, before.ProcName)
	require.Empty(t, tables(t, c))

	var b Batch
	appendTable(&b, FlagExcl)
	appendSet(&b)
	appendNumbers(&b, 0, 10, 20, 30)
	require.NoError(t, c.Commit(t.Context(), &b, before.ID))
	require.Equal(t, []string{"t"}, tables(t, c))
	require.Equal(t, map[uint32]bool{10: true, 20: true, 30: true}, dumpNumbers(t, c))
	require.Equal(t, NextGenID(before.ID), generation(t, c))

	b.Reset()
	appendNumbers(&b, 0, 20)
	require.NoError(t, c.Commit(t.Context(), &b, NextGenID(before.ID)))
	require.Equal(t, NextGenID(before.ID), generation(t, c), "nothing changed")
}

func TestKernelRefusesAllForOneBadMessage(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	commitNumbers(t, c, 3)
	before := generation(t, c)

	var b Batch
	appendNumbers(&b, 0, 100)
	appendNumbers(&b, FlagExcl, 101, 1, 102) // 1 exists already
	b.Message(SubsysNFTables, unix.NFT_MSG_DELCHAIN, 0, familyIPv4, 0,
		Object{Verb: "delete", Kind: "chain", Name: "nowhere", Within: "table ip t"})
	b.Text(unix.NFTA_CHAIN_TABLE, "t")
	b.Text(unix.NFTA_CHAIN_NAME, "nowhere")
	appendNumbers(&b, 0, 103)
	err := c.Commit(t.Context(), &b, before)
	var all OpErrors
	require.ErrorAs(t, err, &all)
	require.Len(t, all, 2)
	require.Equal(t, 1, all[0].Index)
	if all[0].Offset != 0 { // Linux 5.10 does not report the element
		require.EqualError(t, all[0], "add element 1 in set s of table ip t: file exists")
		require.Equal(t, frameLen+8+8+4+16, all[0].Offset)
	}

	require.EqualError(t, all[1], "delete chain nowhere of table ip t: no such file or directory")
	require.Equal(t, frameLen+8, all[1].Offset, "the name of the chain")
	require.Equal(t, 2, all[1].Index)
	require.Len(t, dumpNumbers(t, c), 3, "nothing was applied")
	require.Equal(t, before, generation(t, c))
}

func TestKernelExplainsItself(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	var b Batch
	b.Message(SubsysNFTables, unix.NFT_MSG_GETTABLE, 0, familyIPv4, 0,
		Object{Verb: "get", Kind: "table", Name: "ip t"})
	b.Text(unix.NFTA_TABLE_NAME, "t")
	b.Attr(unix.NFTA_TABLE_FLAGS, []byte{1})
	_, err := c.Query(t.Context(), &b)
	require.EqualError(t, err,
		"get table ip t: numerical result out of range (Attribute failed policy validation)")
	var one *OpError
	require.ErrorAs(t, err, &one)
	require.Equal(t, frameLen+8, one.Offset, "the attribute that is too short")
}

func TestKernelRefusesAStaleGeneration(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	c, other := dialIn(t, ns), dialIn(t, ns)
	read := generation(t, c)
	commitNumbers(t, other, 1)

	var b Batch
	appendNumbers(&b, 0, 7)
	err := c.Commit(t.Context(), &b, read)
	require.ErrorIs(t, err, ErrGenerationChanged)
	require.EqualError(t, err,
		"commit transaction of 1 message: the ruleset changed since it was read")
	require.Len(t, dumpNumbers(t, c), 1)
	require.NoError(t, c.Commit(t.Context(), &b, generation(t, c)),
		"the same batch, now that it was read again")
	require.Len(t, dumpNumbers(t, c), 2)
}

func TestDumpSeesAChangeOnTheWay(t *testing.T) {
	t.Parallel()
	const n = 20_000 // many parts
	ns := newNetNS(t)
	c, other := dialIn(t, ns), dialIn(t, ns)
	commitNumbers(t, c, n)
	require.Equal(t, n, len(dumpNumbers(t, c)))
	var req, change Batch
	requestSet(&req)

	seen := map[uint32]bool{}
	attempts := 0
	for attempts = 1; attempts <= 3; attempts++ {
		clear(seen)
		err := c.Dump(t.Context(), &req, func(m Message) error {
			if attempts <= 2 && len(seen) == 0 {
				change.Reset()
				appendNumbers(&change, 0, uint32(n+attempts))
				require.NoError(t, other.Commit(t.Context(), &change, 0))
			}

			return readNumbers(m, seen)
		})
		require.Equal(t, attempts <= 2, errors.Is(err, ErrDumpInterrupted), "%v", err)
	}

	require.Equal(t, n+2, len(seen))

	err := c.Dump(t.Context(), &req, func(m Message) error {
		change.Reset()
		attempts++
		appendNumbers(&change, 0, uint32(n+attempts))
		return other.Commit(t.Context(), &change, 0)
	})
	require.ErrorIs(t, err, ErrDumpInterrupted)
	require.EqualError(t, err, "list set s of table ip t: the dump was interrupted by a change")
}

func TestDumpsCanBeGivenUp(t *testing.T) {
	t.Parallel()
	const n = 20_000
	c := dialNew(t)
	commitNumbers(t, c, n)
	var req Batch
	requestSet(&req)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		parts := 0
		err := c.Dump(ctx, &req, func(Message) error { cancel(); parts++; return nil })
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, parts)
		require.NotZero(t, c.dumpSeq, "the kernel has more of it")
		require.Equal(t, n, len(dumpNumbers(t, c)), "another dump is complete all the same")
	}

	err := c.Dump(t.Context(), &req, func(Message) error { return unix.ENOTTY })
	require.ErrorIs(t, err, unix.ENOTTY)
	generation(t, c)
	require.Zero(t, c.dumpSeq)
}

// If the kernel has no memory for a part of a dump, the dump stalls. The kernel continues it only
// when the socket is read again, and refuses other dumps until the stalled dump is over.
func TestADumpThatStalledIsNoObstacle(t *testing.T) {
	t.Parallel()
	const n = 20_000
	c := dialNew(t)
	commitNumbers(t, c, n)
	faults := rawnltest.NewFaults()
	c.sock = faults.Wrap(c.sock)
	var req Batch
	requestSet(&req)
	faults.Arm(rawnltest.Stall, 2)
	err := c.Dump(t.Context(), &req, func(Message) error { return nil })
	require.ErrorIs(t, err, ErrAnswersLost)
	require.Equal(t, 1, faults.Disarm())
	require.Equal(t, n, len(dumpNumbers(t, c)))
}

func TestCloseEndsADump(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	commitNumbers(t, c, 20_000)
	var req Batch
	requestSet(&req)
	closed := make(chan error, 1)
	err := c.Dump(t.Context(), &req, func(Message) error {
		if !c.closed.Load() {
			go func() { closed <- c.Close() }()
		}
		for !c.closed.Load() {
			runtime.Gosched()
		}
		return nil
	})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, <-closed)
}

func TestGoroutinesTakeTurns(t *testing.T) {
	t.Parallel()
	const workers, rounds = 4, 25
	c := dialNew(t)
	commitNumbers(t, c, 5000)
	var wg sync.WaitGroup
	for w := range uint32(workers) {
		wg.Go(func() {
			var b, req Batch
			requestSet(&req)
			for i := range uint32(rounds) {
				b.Reset()
				appendNumbers(&b, 0, 10_000+w*rounds+i)
				assert.NoError(t, c.Commit(t.Context(), &b, 0))
				_, err := getNumber(t, c, 10_000+w*rounds+i)
				assert.NoError(t, err)
				_, err = getNumber(t, c, 1<<20)
				assert.ErrorIs(t, err, unix.ENOENT)
				ctx, cancel := context.WithCancel(t.Context())
				err = c.Dump(ctx, &req, func(Message) error { cancel(); return nil })
				assert.ErrorIs(t, err, context.Canceled)
			}
		})
	}

	wg.Wait()
	require.Equal(t, 5000+workers*rounds, len(dumpNumbers(t, c)))
}

// appendQuestions writes messages that ask for the numbers from begin to end.
func appendQuestions(b *Batch, begin, end uint32) {
	appendRange(b, begin, end)
	for i := range b.Len() {
		native.PutUint16(b.At(i)[4:], uint16(SubsysNFTables)<<8|unix.NFT_MSG_GETSETELEM)
		native.PutUint16(b.At(i)[6:], FlagRequest)
	}
}

func TestLookupFindsElements(t *testing.T) {
	t.Parallel()

	// the last queue is so small that answers are lost
	for _, queue := range []int{0, 256 << 10, 8 << 10} {
		c := dialNew(t)
		commitNumbers(t, c, 3000)
		if queue > 0 {
			sock := c.sock.(*kernelSocket)
			ok(sock.buffer(queue, unix.SO_RCVBUF, unix.SO_RCVBUF))(t)
		}

		var b Batch
		appendQuestions(&b, 1000, 8000)
		require.Greater(t, b.Len(), 1)
		next, found := uint32(1000), map[uint32]bool{}
		require.NoError(t, c.Lookup(t.Context(), &b, func(_, _ int, m Message, ok bool) error {
			require.Equal(t, next < 3000, ok)
			next++
			if !ok {
				return nil
			}
			return readNumbers(m, found)
		}))

		require.EqualValues(t, 8000, next)
		require.Len(t, found, 2000)
		require.True(t, found[1000] && found[2999])
	}
}

func TestLookupInAListThatIsNotThere(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	var b Batch
	appendQuestions(&b, 0, 10)
	n := 0
	require.NoError(t, c.Lookup(t.Context(), &b, func(_, _ int, _ Message, ok bool) error {
		require.False(t, ok)
		n++
		return nil
	}))

	require.Equal(t, 10, n)
}
