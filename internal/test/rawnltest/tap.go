package rawnltest

import (
	"slices"
	"testing"
)

// Socket is a socket of rawnl: a fake, or the kernel's.
type Socket interface {
	Send(p []byte) error
	Receive(p []byte, sizes []int) (int, error)
	Limits() (send, queue int)
	LoadModule(name string)
	Close() error
}

// Tap is a socket that shows the messages between a connection and another socket. Only one
// goroutine may use it.
type Tap struct {
	Socket
	// Request is called with each request before the other socket gets it. Answer is called with
	// each message of an answer, and may change the message's body. Both may be nil.
	Request func(request []Message)
	Answer  func(m Message)
}

// Wrap puts the tap in front of a socket.
func (t *Tap) Wrap(s Socket) Socket {
	t.Socket = s
	return t
}

// Send passes a datagram on.
func (t *Tap) Send(p []byte) error {
	if request, err := Split(p); err == nil && t.Request != nil {
		t.Request(request)
	}
	return t.Socket.Send(p)
}

// Receive passes datagrams back.
func (t *Tap) Receive(p []byte, sizes []int) (int, error) {
	n, err := t.Socket.Receive(p, sizes)
	if t.Answer == nil {
		return n, err
	}
	room := len(p) / len(sizes)
	for i, size := range sizes[:n] {
		answer, _ := Split(p[i*room:][:min(size, room)]) // without a message that was cut
		for _, m := range answer {
			t.Answer(m)
		}
	}

	return n, err
}

// GarbleEach calls do again and again. The first time, it garbles the first object in the kernel's
// answers, the second time only the second object, and so on, until no object is left. Each time,
// do must return an error, which shows that do accepts no message that it cannot read. GarbleEach
// does not change answers to requests of the types in but. what names the operation.
func GarbleEach(t testing.TB, what string, tap *Tap, do func() error, but ...uint16) {
	t.Helper()
	defer func() { tap.Request, tap.Answer = nil, nil }()
	for n := 1; ; n++ {
		seen, garbled := 0, uint16(0)
		asked := map[uint32]uint16{} // the types of requests, by sequence number
		tap.Request = func(request []Message) {
			for _, m := range request {
				asked[m.Seq] = m.Type
			}
		}

		tap.Answer = func(m Message) {
			const object, header = 0x10, 4 // NLMSG_MIN_TYPE; nfgenmsg, genlmsghdr
			typ, ours := asked[m.Seq]      // an earlier failure can have left answers
			if !ours || m.Type < object || len(m.Body) < 2*header || slices.Contains(but, typ) {
				return
			}
			if seen++; seen == n {
				garbled = typ
				native.PutUint16(m.Body[header:], 1) // too short for an attribute
			}
		}

		err := do()
		if seen < n {
			if err != nil || n == 1 {
				t.Fatalf("%s: %d objects were answered, and the result is %v", what, seen, err)
			}
			return
		}

		if err == nil {
			t.Fatalf("%s: object %d was garbled, the answer to %#x, and nobody said so", what, n,
				garbled)
		}
	}
}
