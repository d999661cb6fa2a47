package nfnl

import (
	"bytes"
	"syscall"
)

// fakeKernel is a socket whose kernel is a function from a request to datagrams and errors.
type fakeKernel struct {
	answer      func(request []packet) []any // []byte or error
	pending     []any
	size, queue int
	sent        [][]byte
	closed      bool
}

func (f *fakeKernel) send(p []byte) error {
	f.sent = append(f.sent, bytes.Clone(p))
	var request []packet
	for rest := p; len(rest) > 0; {
		var m packet
		var err error
		if m, rest, err = nextPacket(rest); err != nil {
			return err
		}
		request = append(request, m)
	}
	f.pending = append(f.pending, f.answer(request)...)
	return nil
}

func (f *fakeKernel) recv(p []byte) (int, error) {
	if len(f.pending) == 0 {
		return 0, errEmpty
	}
	next := f.pending[0]
	f.pending = f.pending[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	data := next.([]byte)
	copy(p, data)
	return len(data), nil
}

func (f *fakeKernel) recvMany(p []byte, sizes []int) (int, error) {
	for i := range sizes {
		n, err := f.recv(p[i*manySize : (i+1)*manySize])
		if err != nil && i > 0 {
			if err != errEmpty {
				f.pending = append([]any{err}, f.pending...)
			}
			return i, nil
		}
		if err != nil {
			return 0, err
		}
		sizes[i] = n
	}
	return len(sizes), nil
}

func (f *fakeKernel) close() error { f.closed = true; return nil }

func (f *fakeKernel) limits() (send, queue int) { return f.size, f.queue }

// dialFake returns a connection to a fake kernel.
func dialFake(answer func(request []packet) []any) (*Conn, *fakeKernel) {
	f := &fakeKernel{answer: answer, size: 1 << 20, queue: 1 << 20}
	return newConn(f, nil), f
}

// reply makes a reply of nf_tables.
func reply(seq uint32, flags, generation uint16) []byte {
	p := make([]byte, frameLen)
	putFrame(p, uint16(SubsysNFTables)<<8|12, flags, 2, generation)
	native.PutUint32(p[8:], seq)
	return p
}

// done makes the end of a dump.
func done(seq uint32, flags uint16, errno syscall.Errno) []byte {
	p := make([]byte, headerLen+4)
	native.PutUint32(p, uint32(len(p)))
	native.PutUint16(p[4:], msgDone)
	native.PutUint16(p[6:], FlagMulti|flags)
	native.PutUint32(p[8:], seq)
	native.PutUint32(p[headerLen:], uint32(-int32(errno)))
	return p
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
