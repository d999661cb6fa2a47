package livetrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Send sends the first packet of a TCP connection, or a datagram of one byte, and traces it.
// Filter.Src must be an address of the network namespace; if it is not set, the kernel chooses it.
// If Filter.SrcPort is 0, the kernel chooses the port. Send cannot send SCTP: open a [Tracer], and
// send the packet by other means.
func Send(ctx context.Context, cfg *Config) (*Trace, error) {
	t, err := send(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("livetrace: send: %w", err)
	}
	return t, nil
}

func send(ctx context.Context, cfg *Config) (*Trace, error) {
	c := *cmp.Or(cfg, &Config{})
	kind := unix.SOCK_STREAM
	switch {
	case c.Filter.InInterface != "":
		return nil, errors.New("Filter.InInterface: packets of this node have none")
	case c.Filter.Protocol == servicemodel.UDP:
		kind = unix.SOCK_DGRAM
	case c.Filter.Protocol != servicemodel.TCP:
		return nil, fmt.Errorf("Filter.Protocol: %v: only TCP and UDP can be sent",
			c.Filter.Protocol)
	}

	if err := c.Filter.check(); err != nil {
		return nil, err
	}
	ns, err := threadns.Open(c.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close() //nolint:errcheck // nothing was written
	c.NetNS = ns.NetNS()
	var sock int
	err = ns.Do(func() (err error) {
		sock, err = bound(kind, &c.Filter)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(sock) //nolint:errcheck // nothing is lost
	t, err := open(ctx, &c)
	if err != nil {
		return nil, err
	}
	defer t.Close() //nolint:errcheck // the table belongs to the socket
	if err := connect(sock, kind, c.Filter.Dst); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, sendLimit, errors.New("the packet was not met"))
	defer cancel()
	return t.next(ctx)
}

// sendLimit limits the time for tracing a sent packet.
const sendLimit = 30 * time.Second

// bound opens a socket with the source of the packet. It fills in the source if the filter does not
// set it.
func bound(kind int, f *Filter) (int, error) {
	if !f.Src.IsValid() { // the source of a connected socket
		probe, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.Dst))
		if err != nil {
			return -1, fmt.Errorf("choose a source for %v: %w", f.Dst, err)
		}
		f.Src = probe.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
		probe.Close()
	}

	family := unix.AF_INET
	if f.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	src := netip.AddrPortFrom(f.Src, f.SrcPort)
	if err := unix.Bind(fd, sockaddr(src)); err != nil {
		return -1, errors.Join(fmt.Errorf("Filter.Src: send from %v: %w", src, err),
			unix.Close(fd))
	}

	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("getsockname: %w", err), unix.Close(fd))
	}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		f.SrcPort = uint16(name.Port)
	case *unix.SockaddrInet6:
		f.SrcPort = uint16(name.Port)
	}

	return fd, nil
}

func connect(fd, kind int, dst netip.AddrPort) error {
	err := unix.Connect(fd, sockaddr(dst))
	if err == nil && kind == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, []byte{0})
	}
	switch err {
	// If a rule of this machine drops or refuses a packet at once, the call fails, too.
	case nil, unix.EINPROGRESS, unix.EPERM, unix.ECONNREFUSED:
		return nil
	}

	if errors.Is(err, unix.ENETUNREACH) {
		return fmt.Errorf("send to %v: %w: there is no route to it, see docs/sharing.md", dst, err)
	}
	return fmt.Errorf("send to %v: %w", dst, err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
