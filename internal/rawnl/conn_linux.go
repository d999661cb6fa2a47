package rawnl

import (
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// errRestart is how the kernel refuses a transaction made for another generation.
const errRestart = unix.ERESTART

// What the socket asks for. Both are limits, not allocations: the kernel takes memory for what is
// sent or queued, so they are set once, as high as may be of use, and not for each batch. The
// kernel doubles them (sock_setsockopt in net/core/sock.c).
const (
	sendBuffer    = math.MaxInt32 / 2
	receiveBuffer = 8 << 20
)

// sendOverhead is how much less than the send buffer a message may have.
//
//	netlink_sendmsg: if (len > sk->sk_sndbuf - 32) return -EMSGSIZE;
const sendOverhead = 32

// kernelSocket is a netlink socket.
type kernelSocket struct {
	fd          int
	size, queue int // see Socket.Limits
	many        [receiveSize / manySize]mmsghdr
	iov         [receiveSize / manySize]unix.Iovec
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// Protocols of netlink.
const (
	protocolNetfilter = unix.NETLINK_NETFILTER
	protocolGeneric   = unix.NETLINK_GENERIC
)

// openSocket opens a socket in the network namespace netns, or in that of the calling thread for 0.
// A socket stays in the namespace it was made in.
func openSocket(protocol, netns int) (Socket, error) {
	if netns == 0 {
		return newSocket(protocol)
	}
	ns, err := threadns.Open(netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close() //nolint:errcheck // nothing was written
	var sock Socket
	err = ns.Do(func() (err error) {
		sock, err = newSocket(protocol)
		return err
	})
	return sock, err
}

// socketOf opens a socket of a protocol. The kernel loads nfnetlink if need be; but while it is
// loading it for somebody else, it refuses (netlink_create; seen with Linux 5.10).
func socketOf(protocol int) (fd int, err error) {
	for try := range loadTries {
		if try > 0 {
			time.Sleep(loadWait)
		}
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != unix.EPROTONOSUPPORT {
			return fd, err
		}
	}
	return fd, err
}

// How often, and how long apart, a module is waited for that somebody else loads.
const (
	loadTries = 5
	loadWait  = 20 * time.Millisecond
)

// newSocket opens a socket in the network namespace of the calling thread.
func newSocket(protocol int) (Socket, error) {
	fd, err := socketOf(protocol)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	s := &kernelSocket{fd: fd}
	if err := s.configure(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// configure asks for short errors with text and for large buffers. A connected netlink socket takes
// messages from nobody but the kernel (netlink_getsockbyportid in net/netlink/af_netlink.c).
func (s *kernelSocket) configure() error {
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return fmt.Errorf("set netlink option %d: %w", option, err)
		}
	}
	if err := unix.Connect(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("connect to the kernel: %w", err)
	}
	size, err := s.buffer(sendBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("set the size of the send buffer: %w", err)
	}
	s.size = size - sendOverhead
	s.queue, err = s.buffer(receiveBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	if err != nil {
		return fmt.Errorf("set the size of the receive buffer: %w", err)
	}
	return nil
}

// buffer sets a buffer to n bytes and returns what it came to. force needs CAP_NET_ADMIN in the
// initial user namespace. Without, the kernel takes no more than net.core.wmem_max and rmem_max,
// and does not say so.
func (s *kernelSocket) buffer(n, force, plain int) (int, error) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, n) != nil {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, n); err != nil {
			return 0, err
		}
	}
	return unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, plain)
}

// Limits implements [Socket].
func (s *kernelSocket) Limits() (send, queue int) { return s.size, s.queue }

// Close implements [Socket].
func (s *kernelSocket) Close() error { return unix.Close(s.fd) }

// LoadModule asks for a network device that does not exist. With CAP_SYS_MODULE, that makes the
// kernel load a module of that name, with no lock held (dev_load in net/core/dev_ioctl.c).
func (s *kernelSocket) LoadModule(name string) {
	if ifreq, err := unix.NewIfreq(name); err == nil {
		_ = unix.IoctlIfreq(s.fd, unix.SIOCGIFFLAGS, ifreq) // there is no such device
	}
}

// Send implements [Socket].
func (s *kernelSocket) Send(p []byte) error {
	for {
		if err := unix.Send(s.fd, p, 0); err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// Receive implements [Socket].
func (s *kernelSocket) Receive(p []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, p, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch err {
		case nil, errEmpty, errOverrun:
			return n, err
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("recvfrom", err)
		}
	}
}

// ReceiveMany receives with one system call: for answers of a hundred bytes that takes half the
// time.
func (s *kernelSocket) ReceiveMany(p []byte, sizes []int) (int, error) {
	slot := len(p) / len(sizes)
	for i := range sizes {
		s.iov[i].Base = &p[i*slot]
		s.iov[i].SetLen(slot)
		s.many[i].hdr.Iov = &s.iov[i]
		s.many[i].hdr.SetIovlen(1)
	}
	for {
		n, _, err := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd),
			uintptr(unsafe.Pointer(&s.many[0])),
			uintptr(len(sizes)), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
		switch err {
		case 0:
			for i := range n {
				sizes[i] = int(s.many[i].n)
			}
			return int(n), nil
		case errEmpty, errOverrun:
			return 0, err
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("recvmmsg", err)
		}
	}
}
