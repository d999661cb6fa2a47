package rawnl

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/threadns"
)

// errRestart is the kernel's error for a transaction that was built for a different generation.
const errRestart = unix.ERESTART

// The sizes of buffers that the socket asks for. They are limits, not allocations: the kernel
// allocates memory only for messages that are sent or queued. So the socket sets the sizes only
// once, as high as may be useful. The kernel doubles them (sock_setsockopt in net/core/sock.c).
const (
	sendBuffer    = math.MaxInt32 / 2
	receiveBuffer = 8 << 20
)

// sendOverhead is the number of bytes of the send buffer that a message cannot use.
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

// openSocket opens a socket in a network namespace. A socket stays in the namespace in which it was
// created.
func openSocket(protocol int, at netns.Namespace) (Socket, error) {
	if at == "" {
		return newSocket(protocol)
	}
	ns, err := threadns.Open(at)
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

// The number and interval of open's attempts while another process loads the module.
const (
	loadTries = 5
	loadWait  = 20 * time.Millisecond
)

// open calls dial, which opens a socket. The kernel loads nfnetlink if necessary. While it loads
// the module for another process, it refuses (netlink_create; seen with Linux 5.10), so open tries
// again.
func open[T any](dial func() (T, error)) (T, error) {
	for range loadTries - 1 {
		if s, err := dial(); !errors.Is(err, unix.EPROTONOSUPPORT) {
			return s, err
		}
		time.Sleep(loadWait)
	}

	return dial()
}

// toKernel connects a socket, because a connected netlink socket accepts messages only from the
// kernel (netlink_getsockbyportid in net/netlink/af_netlink.c).
func toKernel(fd int) error {
	err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("connect to the kernel", err)
}

// newSocket opens a socket in the network namespace of the calling thread. It requests short errors
// with text, and large buffers.
func newSocket(protocol int) (Socket, error) {
	fd, err := open(func() (int, error) {
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	})
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &kernelSocket{fd: fd}
	err = toKernel(fd)
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err == nil {
			err = os.NewSyscallError(fmt.Sprint("set netlink option ", option),
				unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1))
		}
	}

	if err == nil {
		s.size, err = s.buffer(sendBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
		s.size -= sendOverhead
	}

	if err == nil {
		s.queue, err = s.buffer(receiveBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}

	return s, nil
}

// buffer sets the size of a buffer to n bytes and returns the actual size. The option force needs
// CAP_NET_ADMIN in the initial user namespace. Without it, the kernel silently lowers n to
// net.core.wmem_max or rmem_max.
func (s *kernelSocket) buffer(n, force, plain int) (int, error) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, n) != nil {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, n); err != nil {
			return 0, fmt.Errorf("set the size of a buffer: %w", err)
		}
	}

	return unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, plain)
}

// Limits implements [Socket].
func (s *kernelSocket) Limits() (send, queue int) { return s.size, s.queue }

// Close implements [Socket].
func (s *kernelSocket) Close() error { return unix.Close(s.fd) }

// LoadModule asks for a network device that does not exist. If the process has CAP_SYS_MODULE, the
// kernel then loads a module of that name, with no lock held (dev_load in net/core/dev_ioctl.c).
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

// Receive receives many datagrams with one system call, because that halves the time for answers of
// a hundred bytes. It receives a single datagram with recvfrom(2), which is faster.
func (s *kernelSocket) Receive(p []byte, sizes []int) (int, error) {
	name, trap, at, length := "recvfrom", uintptr(unix.SYS_RECVFROM), unsafe.Pointer(&p[0]), len(p)
	if len(sizes) > 1 {
		name, trap, at, length = "recvmmsg", unix.SYS_RECVMMSG, unsafe.Pointer(&s.many[0]),
			len(sizes)
		slot := len(p) / len(sizes)
		for i := range sizes {
			s.iov[i].Base = &p[i*slot]
			s.iov[i].SetLen(slot)
			s.many[i].hdr.Iov = &s.iov[i]
			s.many[i].hdr.SetIovlen(1)
		}
	}

	for {
		// unix.Recvfrom would allocate the sender's address twice.
		n, _, err := unix.Syscall6(trap, uintptr(s.fd), uintptr(at), uintptr(length),
			unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
		switch {
		case err == 0 && len(sizes) == 1:
			sizes[0] = int(n)
			return 1, nil
		case err == 0:
			for i := range n {
				sizes[i] = int(s.many[i].n)
			}
			return int(n), nil
		case err == errEmpty, err == errOverrun:
			return 0, err
		case err != unix.EINTR:
			return 0, os.NewSyscallError(name, err)
		}
	}
}
