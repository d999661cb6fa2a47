package rawnl

import (
	"syscall"
	"testing"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

var _ Socket = (*rawnltest.Kernel)(nil)

// messages are the messages of a datagram.
type messages = []rawnltest.Message

// dialFake returns a connection to a fake kernel.
func dialFake(t testing.TB, answer func(r messages) []any) (*Conn, *rawnltest.Kernel) {
	t.Helper()
	k := &rawnltest.Kernel{Answer: answer}
	c := ok(Dial(&Config{Socket: k}))(t)
	return c, k
}

// limit sets the limits of the fake socket; 0 means 1 MiB.
func limit(c *Conn, k *rawnltest.Kernel, size, queue int) {
	k.Size, k.Queue = size, queue
	c.limit, c.queue = k.Limits()
}

// answer builds an NLMSG_ERROR for the request seq.
func answer(seq uint32, errno syscall.Errno, text string, offset uint32) []byte {
	m := rawnltest.Message{Seq: seq, Body: make([]byte, 5000)} // longer than a quoted part
	return rawnltest.Error(m, errno, text, offset)
}

// reply builds a reply of nf_tables.
func reply(seq uint32, flags, generation uint16) []byte {
	p := make([]byte, frameLen)
	putFrame(p, uint16(SubsysNFTables)<<8|12, flags, 2, generation)
	native.PutUint32(p[8:], seq)
	return p
}

// done builds the end of a dump.
func done(seq uint32, flags uint16, errno syscall.Errno) []byte {
	return rawnltest.Done(seq, flags, errno)
}

// numbered writes n messages about the objects 0, 1, ….
func numbered(n int) *Batch {
	var b Batch
	for i := range n {
		b.Message(SubsysNFTables, 9, 0, 2, 0, Object{Verb: "add", Kind: "set",
			Name: string(rune('a' + i))})
		b.Text(1, "t")
	}

	return &b
}

// ok returns the result of a call, which must not have failed: ok(call())(t).
func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }
