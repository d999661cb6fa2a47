package ipvsnl

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// bufferSize is asked for as the size of both socket buffers; the kernel doubles it
	// (sock_setsockopt in net/core/sock.c). They are limits, not allocations.
	bufferSize = 1 << 20
	// readSize is the size of the buffer for reads. The kernel makes the parts of a dump as large
	// as the largest read so far, up to 32 KiB less its own overhead (netlink_recvmsg and
	// netlink_dump in net/netlink/af_netlink.c).
	readSize = 32 << 10
)

// kernelTransport is a generic netlink socket. The socket is mdlayher's, who knows how to open one
// in another network namespace and how to close it while it is in use. Sending and receiving is
// done here: his calls read each answer with two system calls and into memory of its own, and wait
// in the poller for what is never late.
type kernelTransport struct {
	sock    *netlink.Conn
	raw     syscall.RawConn
	bytes   int
	answers int
	rx      []byte
}

var _ Transport = (*kernelTransport)(nil)

// openTransport opens a socket in the network namespace netns, or in that of the calling thread for
// 0.
func openTransport(netns int) (Transport, error) {
	sock, err := netlink.Dial(unix.NETLINK_GENERIC, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("open a generic netlink socket: %w", err)
	}
	t := &kernelTransport{sock: sock, rx: make([]byte, readSize)}
	if err := t.configure(); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return t, nil
}

// configure asks for short errors with text and for large buffers.
func (t *kernelTransport) configure() (err error) {
	for _, option := range []netlink.ConnOption{netlink.CapAcknowledge,
		netlink.ExtendedAcknowledge} {
		if err := t.sock.SetOption(option, true); err != nil {
			return fmt.Errorf("set netlink option %d: %w", option, err)
		}
	}
	if err := errors.Join(t.sock.SetReadBuffer(bufferSize),
		t.sock.SetWriteBuffer(bufferSize)); err != nil {
		return fmt.Errorf("set the size of the socket buffers: %w", err)
	}
	size, err := t.sock.WriteBuffer()
	if err != nil {
		return fmt.Errorf("get the size of the send buffer: %w", err)
	}
	t.bytes = size - 32 // netlink_sendmsg: if (len > sk->sk_sndbuf - 32) return -EMSGSIZE
	if size, err = t.sock.ReadBuffer(); err != nil {
		return fmt.Errorf("get the size of the receive buffer: %w", err)
	}
	t.answers = size / ackReserve
	if t.raw, err = t.sock.SyscallConn(); err != nil {
		return fmt.Errorf("use the socket: %w", err)
	}
	return t.connect()
}

// connect makes the socket take messages from nobody but the kernel (netlink_getsockbyportid in
// net/netlink/af_netlink.c).
func (t *kernelTransport) connect() error {
	var err error
	if e := t.raw.Control(func(fd uintptr) {
		err = unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}); e != nil {
		return e
	}
	return os.NewSyscallError("connect", err)
}

func (t *kernelTransport) Limits() (bytes, answers int) { return t.bytes, t.answers }

func (t *kernelTransport) Close() error { return t.sock.Close() }

// LoadModule asks for a network device that does not exist. With CAP_SYS_MODULE, that makes the
// kernel load a module of that name, with no lock held (dev_load in net/core/dev_ioctl.c).
func (t *kernelTransport) LoadModule(name string) {
	ifreq, err := unix.NewIfreq(name)
	if err != nil {
		return
	}
	t.raw.Control(func(fd uintptr) { //nolint:errcheck // who needs the module will find out
		// nolint:errcheck // there is no such device
		unix.IoctlIfreq(int(fd), unix.SIOCGIFFLAGS, ifreq)
	})
}

func (t *kernelTransport) RoundTrip(request []byte, take func([]byte) (bool, error)) error {
	var err error
	if e := t.raw.Control(func(fd uintptr) {
		err = t.roundTrip(int(fd), request, take)
	}); e != nil {
		return ErrClosed
	}
	return err
}

// roundTrip is RoundTrip while the socket cannot be closed.
func (t *kernelTransport) roundTrip(fd int, request []byte, take func([]byte) (bool, error)) error {
	if err := send(fd, request); err != nil {
		return err
	}
	var failed error
	lost := false
	for done := false; !done; {
		n, err := receive(fd, t.rx)
		switch {
		case err == unix.ENOBUFS:
			lost = true
			continue
		case err == unix.EAGAIN && failed != nil:
			return failed
		case err == unix.EAGAIN:
			return ErrAnswersLost
		case err != nil:
			return os.NewSyscallError("recvfrom", err)
		case failed != nil:
			continue
		case n > len(t.rx):
			failed = fmt.Errorf("%w: a datagram of %d bytes, more than %d", ErrMalformed, n,
				len(t.rx))
		default:
			done, failed = take(t.rx[:n])
			done = done && failed == nil
		}
	}
	if lost {
		return ErrAnswersLost
	}
	return nil
}

// send sends one datagram, which the kernel has worked on when send returns.
func send(fd int, p []byte) error {
	for {
		if err := unix.Send(fd, p, 0); err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// receive takes a datagram out of the receive queue. The length is that of the whole datagram.
func receive(fd int, p []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, p, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if err != unix.EINTR {
			return n, err
		}
	}
}
