package rawnl

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener receives messages of multicast groups. Close and SetDeadline may be called at any time,
// the other methods by one goroutine at a time.
type Listener struct {
	socket *listenerFile // not watched by the runtime

	mu      sync.Mutex
	watched *listenerFile // the same socket, watched; nil until it is first waited for
	closed  bool
}

// Listen opens a socket for the messages of groups, in the network namespace of the calling thread.
func Listen(cfg ListenConfig) (*Listener, error) {
	fd, err := socketOf(protocolNetfilter)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := configureListener(fd, cfg); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// os.NewFile gives a file to the runtime's poller only if it is non-blocking. This one is not
	// yet.
	socket, err := newListenerFile(fd)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, socket.file.Close())
	}
	return &Listener{socket: socket}, nil
}

func configureListener(fd int, cfg ListenConfig) error {
	if len(cfg.Filter) > 0 {
		program := make([]unix.SockFilter, len(cfg.Filter))
		for i, in := range cfg.Filter {
			program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
		}
		prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&prog); err != nil {
			return fmt.Errorf("attach the filter: %w", err)
		}
	}
	// Only the kernel can send messages to a connected netlink socket directly, outside multicast
	// groups.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect to the kernel: %w", err)
	}
	s := kernelSocket{fd: fd}
	if _, err := s.buffer(cfg.Buffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF); err != nil {
		return fmt.Errorf("set the size of the queue: %w", err)
	}
	for _, g := range cfg.Groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			int(g)); err != nil {
			return fmt.Errorf("join group %d: %w", g, err)
		}
	}
	return nil
}

// Receive removes one datagram from the queue. It does not wait. It returns [ErrEmpty] if the queue
// is empty, and [ErrOverflow] once after the kernel could not queue messages. More may be missing
// until it has returned ErrEmpty. If a program never calls Wait, arriving messages do not wake up
// the process.
func (l *Listener) Receive(p []byte) (int, error) { return l.result(l.socket.receive(p, false)) }

// Wait is Receive that waits for a datagram until the deadline. It then returns
// [os.ErrDeadlineExceeded].
func (l *Listener) Wait(p []byte) (int, error) {
	f, err := l.watch()
	if err != nil {
		return 0, err
	}
	return l.result(f.receive(p, true))
}

// SetDeadline sets the deadline of Wait, also of a Wait in progress. The zero time means no
// deadline.
func (l *Listener) SetDeadline(t time.Time) error {
	f, err := l.watch()
	if err != nil {
		return err
	}
	return f.file.SetReadDeadline(t)
}

// Close closes the socket. A Wait in progress ends with [ErrClosed].
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	err := l.socket.file.Close()
	if l.watched != nil {
		err = errors.Join(err, l.watched.file.Close())
	}
	return err
}

// watch returns the socket as a file of the runtime's poller.
func (l *Listener) watch() (*listenerFile, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if l.watched != nil {
		return l.watched, nil
	}
	var fd int
	var err error
	controlErr := l.socket.raw.Control(func(own uintptr) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("duplicate the socket: %w", err)
	}
	l.watched, err = newListenerFile(fd)
	return l.watched, err
}

// result returns the result of a receive. If the socket was closed, the error is [ErrClosed].
func (l *Listener) result(n int, err error) (int, error) {
	if err == nil || err == errEmpty || err == errOverrun {
		return n, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, ErrClosed
	}
	return 0, err
}

// listenerFile is one descriptor of the socket.
type listenerFile struct {
	file *os.File
	raw  syscall.RawConn
	read func(fd uintptr) bool // made once, so that receiving allocates nothing

	// The arguments and results of read.
	p    []byte
	wait bool
	n    int
	err  error
}

func newListenerFile(fd int) (*listenerFile, error) {
	f := &listenerFile{file: os.NewFile(uintptr(fd), "netlink")}
	var err error
	if f.raw, err = f.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.file.Close())
	}
	f.read = func(fd uintptr) bool {
		f.n, f.err = readDatagram(int(fd), f.p)
		return f.err != errEmpty || !f.wait
	}
	return f, nil
}

func (f *listenerFile) receive(p []byte, wait bool) (int, error) {
	f.p, f.wait = p, wait
	if err := f.raw.Read(f.read); err != nil {
		return 0, err
	}
	return f.n, f.err
}

// readDatagram reads from a socket that does not block.
func readDatagram(fd int, p []byte) (int, error) {
	for {
		switch n, err := unix.Read(fd, p); err {
		case nil, errEmpty, errOverrun:
			return n, err
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("read", err)
		}
	}
}
