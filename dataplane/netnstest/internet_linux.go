package netnstest

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// startInternet makes a namespace answer all packets that arrive at its eth0, until it is closed.
func startInternet(ns *NS) error {
	s, err := openSock(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0, func(fd int) error {
		// Only root of the initial user namespace may exceed the system's limit.
		const buffer = 8 << 20
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
			// nolint:errcheck // see above
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
		}

		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}

		// In network byte order. Before this the socket has no protocol, so it has received nothing
		// from other interfaces.
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return os.NewSyscallError("bind",
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	})
	if err != nil {
		return fmt.Errorf("netnstest: %s: open packet socket: %w", ns.name, err)
	}
	i := &internet{sock: s}
	if err := ns.own(i); err != nil {
		s.Close() //nolint:errcheck // the first error counts
		return err
	}

	i.reader.Go(func() {
		buf := make([]byte, 512) // the headers of a packet, and all of a probe
		for s.pollRead(func(fd int) bool { return answerAll(fd, buf) }) == nil {
		}
	})

	return nil
}

// answerAll answers all waiting packets. It returns true on every error except an empty queue; if
// the socket is closed, the next poll fails.
func answerAll(fd int, buf []byte) bool {
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err != unix.EAGAIN && err != unix.EINTR
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype != unix.PACKET_HOST {
			continue
		}
		if p, transport, ok := decodePacket(buf[:n]); ok {
			if b := internetAnswer(p, transport); b != nil {
				unix.Sendto(fd, b, 0, link) //nolint:errcheck // the network may lose packets
			}
		}
	}
}
