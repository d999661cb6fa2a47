package conntrack

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// eventSocket receives events of some protocols. Unlike the socket of a [Follower] it is not
// watched by the runtime, which would wake up for each event: it is for who looks from time to
// time.
type eventSocket struct{ fd int }

// openEvents opens an event socket in the network namespace of the calling thread.
func openEvents(o eventOptions) (eventSource, error) {
	groups, err := eventGroups(o.types)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := configureEvents(fd, o, groups); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &eventSocket{fd}, nil
}

func configureEvents(fd int, o eventOptions, groups []uint32) error {
	var program []unix.SockFilter
	for _, i := range eventFilter(o.protocols) {
		program = append(program, unix.SockFilter{Code: i.code, Jt: i.jt, Jf: i.jf, K: i.k})
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&prog); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	// A connected netlink socket takes messages for it alone from nobody but the kernel.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect to the kernel: %w", err)
	}
	// needs CAP_NET_ADMIN in the initial user namespace
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, o.buffer) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, o.buffer); err != nil {
			return fmt.Errorf("set the size of the queue: %w", err)
		}
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			int(g)); err != nil {
			return fmt.Errorf("join group %d: %w", g, err)
		}
	}
	return nil
}

func (s *eventSocket) receive(p []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, p)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errNoEvent
		case unix.ENOBUFS:
			return 0, errEventsLost
		default:
			return 0, os.NewSyscallError("read", err)
		}
	}
}

func (s *eventSocket) close() error { return unix.Close(s.fd) }
