package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// ends sends to the ends of connections from the node. It opens its sockets in the namespace when
// they are first needed.
type ends struct {
	ns      *threadns.NS
	sockets map[endSocket]int
}

type endSocket struct{ domain, typ int }

// socket returns the socket of a kind. With raw sockets the caller writes the IP header:
// IPPROTO_RAW implies IP_HDRINCL (raw(7)) and IPV6_HDRINCL (inet6_create in net/ipv6/af_inet6.c).
func (e *ends) socket(kind endSocket) (int, error) {
	if fd, ok := e.sockets[kind]; ok {
		return fd, nil
	}
	protocol := 0
	if kind.typ == unix.SOCK_RAW {
		protocol = unix.IPPROTO_RAW
	}
	fd := -1
	err := e.ns.Do(func() (err error) {
		fd, err = unix.Socket(kind.domain, kind.typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	if err != nil {
		return -1, err
	}
	if e.sockets == nil {
		e.sockets = map[endSocket]int{}
	}
	e.sockets[kind] = fd
	return fd, nil
}

// source returns the address from which the node would send to the peer. It connects a UDP socket,
// which sends nothing.
func (e *ends) source(peer netip.Addr) (netip.Addr, error) {
	fd, err := e.socket(endSocket{domain(peer), unix.SOCK_DGRAM})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("open a socket: %w", err)
	}
	// A socket keeps the address of its first connect until it is disconnected.
	if err := disconnect(fd); err != nil {
		return netip.Addr{}, fmt.Errorf("disconnect: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(netip.AddrPortFrom(peer, tombstonePort))); err != nil {
		return netip.Addr{}, fmt.Errorf("connect: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("getsockname: %w", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr), nil
	}
	return netip.Addr{}, fmt.Errorf("getsockname: unexpected %T", sa)
}

// send sends an IP packet.
func (e *ends) send(packet []byte, to netip.Addr) error {
	fd, err := e.socket(endSocket{domain(to), unix.SOCK_RAW})
	if err != nil {
		return fmt.Errorf("open a raw socket: %w", err)
	}
	return unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(to, 0)))
}

// close closes the sockets.
func (e *ends) close() error {
	var errs []error
	for _, fd := range e.sockets {
		errs = append(errs, unix.Close(fd))
	}
	e.sockets = nil
	return errors.Join(errs...)
}

func domain(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// disconnect dissolves the connection of a UDP socket (connect(2), AF_UNSPEC).
func disconnect(fd int) error {
	var sa unix.RawSockaddr // AF_UNSPEC is 0
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)),
		unsafe.Sizeof(sa))
	if errno != 0 {
		return errno
	}
	return nil
}
