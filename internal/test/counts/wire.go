package counts

import (
	"encoding/binary"
	"runtime"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// wrap returns a socket that counts its traffic.
func (w *wire) wrap(s rawnl.Socket) rawnl.Socket {
	_, fake := s.(*rawnltest.Kernel)
	return &counted{Socket: s, wire: w, fake: fake}
}

// counted is a socket whose messages are counted.
type counted struct {
	rawnl.Socket
	wire *wire
	fake bool // the kernel is in this process, so what it allocates does not count
}

// Send counts the messages of a datagram.
func (c *counted) Send(p []byte) error {
	c.wire.add(func(sum *Cost) {
		for range messages(p) {
			sum.Messages++
		}
		sum.Sent += float64(len(p))
	})

	var err error
	c.apart(func() { err = c.Socket.Send(p) })
	return err
}

// Receive counts the objects in the answers.
func (c *counted) Receive(p []byte, sizes []int) (n int, err error) {
	c.apart(func() { n, err = c.Socket.Receive(p, sizes) })
	room := len(p) / len(sizes)
	c.wire.add(func(sum *Cost) {
		for i, size := range sizes[:n] {
			for typ, body := range messages(p[i*room:][:min(size, room)]) {
				sum.Asked += float64(objects(typ, body))
			}
		}
	})

	return n, err
}

// apart calls the socket. Allocations of a fake do not count.
func (c *counted) apart(call func()) {
	if !c.fake {
		call()
		return
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	c.wire.add(func(sum *Cost) {
		sum.Allocations += float64(after.Mallocs - before.Mallocs)
		sum.Bytes += float64(after.TotalAlloc - before.TotalAlloc)
	})
}

func (w *wire) add(to func(*Cost)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	to(&w.cost)
}

// messages yields the types and bodies of the messages of a datagram. It allocates nothing.
func messages(p []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		const header = 16
		for len(p) >= header {
			n := int(binary.NativeEndian.Uint32(p))
			if n < header || n > len(p) || !yield(binary.NativeEndian.Uint16(p[4:]), p[header:n]) {
				return
			}
			p = p[min((n+3)&^3, len(p)):]
		}
	}
}

// Messages of netlink and of nf_tables (include/uapi/linux/netlink.h, nfnetlink.h, nf_tables.h).
const (
	firstObject = 0x10       // NLMSG_MIN_TYPE
	newElements = 10<<8 | 12 // NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWSETELEM
	elements    = 3          // NFTA_SET_ELEM_LIST_ELEMENTS
)

// objects returns the number of objects in a message of the kernel.
func objects(typ uint16, body []byte) (n int) {
	switch {
	case typ < firstObject:
		return 0
	case typ != newElements || len(body) < 4:
		return 1
	}

	for attr, list := range attributes(body[4:]) {
		if attr == elements {
			for range attributes(list) {
				n++
			}
		}
	}

	return n
}

// attributes yields the types and values of netlink attributes.
func attributes(p []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		const header, typeMask = 4, 0x3fff // without NLA_F_NESTED
		for len(p) >= header {
			n := int(binary.NativeEndian.Uint16(p))
			if n < header || n > len(p) ||
				!yield(binary.NativeEndian.Uint16(p[2:])&typeMask, p[header:n]) {
				return
			}

			p = p[min((n+3)&^3, len(p)):]
		}
	}
}
