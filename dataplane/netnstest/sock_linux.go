package netnstest

import (
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// sock is a socket on the runtime's poller: a goroutine waits for it, not a thread. Package net
// cannot read a socket's error queue.
type sock struct {
	file *os.File
	conn syscall.RawConn
}

// openSock opens a socket in the namespace and sets it up there.
func openSock(ns *NS, domain, typ, proto int, setup func(fd int) error) (*sock, error) {
	var s *sock
	err := ns.Do(func() error {
		fd, err := unix.Socket(domain, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		s = &sock{file: os.NewFile(uintptr(fd), "socket")}
		if s.conn, err = s.file.SyscallConn(); err == nil {
			err = setup(fd)
		}
		return err
	})
	if err != nil && s != nil {
		s.file.Close() //nolint:errcheck // the first error counts
	}
	return s, err
}

// Close closes the socket and ends all waiting.
func (s *sock) Close() error { return s.file.Close() }

// pollRead calls f until it returns true: now, and each time the socket may have something to read,
// errors included. It fails with os.ErrDeadlineExceeded at the file's read deadline.
func (s *sock) pollRead(f func(fd int) bool) error {
	return s.conn.Read(func(fd uintptr) bool { return f(int(fd)) })
}

// pollWrite is pollRead for a socket that may have become writable, because it has connected or
// failed to connect. (While a socket connects, it may report only an error; the runtime then
// believes that its poller cannot read the socket.)
func (s *sock) pollWrite(f func(fd int) bool) error {
	return s.conn.Write(func(fd uintptr) bool { return f(int(fd)) })
}

// control calls f once.
func (s *sock) control(f func(fd int)) error {
	return s.conn.Control(func(fd uintptr) { f(int(fd)) })
}

// connect connects the socket. If it fails with EINPROGRESS, a TCP socket is not connected yet.
func (s *sock) connect(to netip.AddrPort) error {
	var err error
	ctlErr := s.control(func(fd int) { err = unix.Connect(fd, sockaddr(to)) })
	return errors.Join(ctlErr, os.NewSyscallError("connect", err))
}

// localAddr returns the address from which the socket sends.
func (s *sock) localAddr() (addr netip.Addr) {
	s.control(func(fd int) { //nolint:errcheck // the zero address means unknown
		if sa, err := unix.Getsockname(fd); err == nil {
			addr = fromSockaddr(sa).Addr()
		}
	})

	return addr
}

// domainOf returns the socket domain of an address.
func domainOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}

	return netip.AddrPort{}
}
