package rawnl

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Listener receives messages of multicast groups. Close and SetDeadline may be called at any time,
// Receive by one goroutine at a time.
type Listener struct{ file *os.File }

// Listen opens a socket in the network namespace of the calling thread, for the messages of groups
// (NFNLGRP_*, include/uapi/linux/netfilter/nfnetlink.h). buffer is the size of the queue in bytes.
// The kernel doubles it. Without CAP_NET_ADMIN in the initial user namespace, it is
// net.core.rmem_max at most.
func Listen(groups []uint32, buffer int) (*Listener, error) {
	fd, err := socketOf(protocolNetfilter)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := configureListener(fd, groups, buffer); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Listener{os.NewFile(uintptr(fd), "netlink")}, nil
}

func configureListener(fd int, groups []uint32, buffer int) error {
	// Only the kernel can send messages to a connected netlink socket directly, outside multicast
	// groups.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect to the kernel: %w", err)
	}
	s := kernelSocket{fd: fd}
	if _, err := s.buffer(buffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("set the size of the queue: %w", err)
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			int(g)); err != nil {
			return fmt.Errorf("join group %d: %w", g, err)
		}
	}
	// Only then does the runtime's poller wait for it.
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("make the socket non-blocking: %w", err)
	}
	return nil
}

// Receive waits for a datagram and removes it from the queue. It returns [ErrOverflow] once after
// the kernel could not queue messages, and [ErrClosed] when the listener is closed.
func (l *Listener) Receive(p []byte) (int, error) {
	n, err := l.file.Read(p)
	switch {
	case errors.Is(err, errOverrun):
		return 0, ErrOverflow
	case errors.Is(err, os.ErrClosed):
		return 0, ErrClosed
	}
	return n, err
}

// SetDeadline sets the deadline of Receive, also of one in progress, which then returns
// [os.ErrDeadlineExceeded]. The zero time means no deadline.
func (l *Listener) SetDeadline(t time.Time) error { return l.file.SetReadDeadline(t) }

// Close closes the socket. A Receive in progress ends with [ErrClosed].
func (l *Listener) Close() error { return l.file.Close() }
