// Package rawnltest simulates the kernel at the other end of a netlink connection, for tests. A
// [Kernel] is a socket whose answers come from a function. The package also makes a real kernel
// fail: [FailEach] fails each request in turn, [GarbleEach] garbles each object of the answers, and
// [FailEachOpen] limits the file descriptors. A [Tap] shows the messages, so a test can act between
// two requests.
package rawnltest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"syscall"
)

// headerLen is the length of struct nlmsghdr.
const headerLen = 16

// native is the byte order of netlink's headers.
var native = binary.NativeEndian

// Message is a message as the kernel receives it.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte // after the nlmsghdr
}

// Split splits a datagram into messages. It stops at the first malformed message, as the kernel
// does, and explains its fault.
func Split(datagram []byte) (request []Message, err error) {
	for len(datagram) > 0 {
		if len(datagram) < headerLen {
			return request, fmt.Errorf("%d bytes are too short for a header", len(datagram))
		}
		n := int(native.Uint32(datagram))
		if n < headerLen || n > len(datagram) {
			return request, fmt.Errorf("a message claims %d bytes, %d are there", n, len(datagram))
		}
		request = append(request, Message{
			Type: native.Uint16(datagram[4:]), Flags: native.Uint16(datagram[6:]),
			Seq: native.Uint32(datagram[8:]), Body: datagram[headerLen:n:n],
		})
		datagram = datagram[min((n+3)&^3, len(datagram)):]
	}

	return request, nil
}

// Kernel is an rawnl.Socket whose kernel is a function from a request to the answers. Only one
// goroutine may use it.
type Kernel struct {
	// Answer returns the content of the receive queue: datagrams ([]byte), and errors, which the
	// socket returns instead of a datagram.
	Answer func(request []Message) []any
	// Size and Queue are the limits of the socket. Zero means one MiB.
	Size, Queue int

	Pending []any    // what is in the receive queue
	Sent    [][]byte // the datagrams that were sent
	Loaded  []string // the requested modules
	Closed  bool
}

// Send passes a datagram to Answer.
func (k *Kernel) Send(p []byte) error {
	if size, _ := k.Limits(); len(p) > size {
		return syscall.EMSGSIZE
	}
	p = bytes.Clone(p)
	k.Sent = append(k.Sent, p)
	request, err := Split(p)
	if err != nil {
		return err
	}
	k.Pending = append(k.Pending, k.Answer(request)...)
	return nil
}

// Receive removes answers from the queue, up to the first error.
func (k *Kernel) Receive(p []byte, sizes []int) (int, error) {
	room := len(p) / len(sizes)
	for i := range sizes {
		if len(k.Pending) == 0 && i > 0 {
			return i, nil
		}
		if len(k.Pending) == 0 {
			return 0, syscall.EAGAIN
		}
		err, fails := k.Pending[0].(error)
		if fails && i > 0 {
			return i, nil
		}
		next := k.Pending[0]
		k.Pending = k.Pending[1:]
		if fails {
			return 0, err
		}
		data := next.([]byte)
		copy(p[i*room:(i+1)*room], data)
		sizes[i] = len(data)
	}

	return len(sizes), nil
}

// Limits returns Size and Queue.
func (k *Kernel) Limits() (send, queue int) {
	return cmp.Or(k.Size, 1<<20), cmp.Or(k.Queue, 1<<20)
}

// LoadModule notes the name.
func (k *Kernel) LoadModule(name string) { k.Loaded = append(k.Loaded, name) }

// Close notes that the socket is closed.
func (k *Kernel) Close() error {
	k.Closed = true
	return nil
}
