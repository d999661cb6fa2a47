package rawnl

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Listener receives messages of multicast groups. Close and SetDeadline may be called at any time,
// Receive by only one goroutine at a time.
type Listener struct {
	conn   *netlink.Conn
	raw    syscall.RawConn
	closed atomic.Bool

	// The read in progress. A closure for each read would be an allocation for each read.
	read func(fd uintptr) bool
	p    []byte
	n    int
	err  error
}

// Listen opens a socket in the network namespace of the calling thread, for the messages of groups
// (NFNLGRP_*, include/uapi/linux/netfilter/nfnetlink.h). buffer is the size of the queue in bytes.
// The kernel doubles it. Without CAP_NET_ADMIN in the initial user namespace, the size is at most
// net.core.rmem_max.
func Listen(groups []uint32, buffer int) (*Listener, error) {
	conn, err := open(func() (*netlink.Conn, error) {
		return netlink.Dial(protocolNetfilter, nil)
	})
	if err != nil {
		return nil, err
	}
	l := &Listener{conn: conn}
	if l.raw, err = conn.SyscallConn(); err == nil {
		err = l.raw.Control(func(fd uintptr) { l.err = toKernel(int(fd)) })
	}
	err = errors.Join(err, l.err, conn.SetReadBuffer(buffer), l.Join(groups))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l.read = func(fd uintptr) bool {
		l.n, l.err = unix.Read(int(fd), l.p)
		for l.err == unix.EINTR {
			l.n, l.err = unix.Read(int(fd), l.p)
		}
		return l.err != errEmpty
	}

	return l, nil
}

// Join adds the socket to groups.
func (l *Listener) Join(groups []uint32) (err error) {
	for _, g := range groups {
		err = errors.Join(err, l.conn.JoinGroup(g))
	}
	return err
}

// Leave removes the socket from groups. Messages that are already queued stay.
func (l *Listener) Leave(groups []uint32) (err error) {
	for _, g := range groups {
		err = errors.Join(err, l.conn.LeaveGroup(g))
	}
	return err
}

// Receive waits for a datagram and removes it from the queue. After the kernel failed to queue
// messages, Receive returns [ErrOverflow] once. When the listener is closed, it returns
// [ErrClosed].
func (l *Listener) Receive(p []byte) (int, error) {
	l.p = p
	err := l.raw.Read(l.read)
	switch {
	case l.closed.Load():
		return 0, ErrClosed
	case err != nil:
		return 0, err
	case l.err != nil:
		return 0, l.err // ENOBUFS is ErrOverflow
	}

	return l.n, nil
}

// SetFilter makes the kernel queue only messages for which the program returns more than 0. It
// replaces an earlier program. Messages that are already queued stay.
func (l *Listener) SetFilter(program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err == nil {
		err = l.conn.SetBPF(raw)
	}
	if err != nil {
		return fmt.Errorf("filter messages: %w", err)
	}
	return nil
}

// SetDeadline sets the deadline of Receive, including a Receive in progress, which then returns
// [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (l *Listener) SetDeadline(t time.Time) error { return l.conn.SetReadDeadline(t) }

// Close closes the socket. A Receive in progress ends with [ErrClosed].
func (l *Listener) Close() error {
	l.closed.Store(true)
	return l.conn.Close()
}
