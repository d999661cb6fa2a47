package netnstest

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// snapLen is how many bytes of a packet are read: its headers, and all of a probe.
const snapLen = 512

// packetSocket reads and writes the IP packets of an interface: AF_PACKET without the link-layer
// header (packet(7)).
type packetSocket struct {
	*sock
	readers sync.WaitGroup
}

// openPacketSocket opens a packet socket for one interface, or for all if iface is empty.
func openPacketSocket(ns *NS, iface string) (*packetSocket, error) {
	s, err := openSock(ns, unix.AF_PACKET, unix.SOCK_DGRAM, 0, func(fd int) error {
		// Only root of the initial user namespace may exceed the system's limit.
		const buffer = 8 << 20
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
			// nolint:errcheck // see above
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
		}
		index := 0
		if iface != "" {
			link, err := net.InterfaceByName(iface)
			if err != nil {
				return err
			}
			index = link.Index
		}
		// The socket has no protocol before this, so it holds nothing from other interfaces.
		all := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index}
		return os.NewSyscallError("bind", unix.Bind(fd, all))
	})
	if err != nil {
		return nil, fmt.Errorf("netnstest: %s: open packet socket on %q: %w", ns.name, iface, err)
	}
	return &packetSocket{sock: s}, nil
}

// Close closes the socket and waits for its readers.
func (s *packetSocket) Close() error {
	err := s.sock.Close()
	s.readers.Wait()
	return err
}

// startCapture starts a capture. If answer is given, the capture records only packets that arrive
// for a single host, and sends the packets that answer returns back to where they came from.
func startCapture(ns *NS, iface string, answer func(Packet, []byte) []byte) (*Capture, error) {
	socket, err := openPacketSocket(ns, iface)
	if err != nil {
		return nil, err
	}
	c := &Capture{ns: ns, socket: socket}
	if err := ns.own(c); err != nil {
		socket.Close() //nolint:errcheck // the first error counts
		return nil, err
	}
	socket.readers.Go(func() {
		buf := make([]byte, snapLen)
		// A closed socket ends this.
		for socket.pollRead(func(fd int) bool { return c.drain(fd, buf, answer) }) == nil {
		}
	})
	return c, nil
}

// drain records all waiting packets. It returns true on every error except an empty queue; the next
// poll then tells whether the socket is closed.
func (c *Capture) drain(fd int, buf []byte, answer func(Packet, []byte) []byte) bool {
	for {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err != unix.EAGAIN && err != unix.EINTR
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype != unix.PACKET_HOST && answer != nil {
			continue
		}
		p, transport, ok := decodePacket(buf[:n])
		if !ok {
			continue
		}
		p.Outgoing = link.Pkttype == unix.PACKET_OUTGOING
		c.record(p)
		if answer == nil {
			continue
		}
		if b := answer(p, transport); b != nil {
			unix.Sendto(fd, b, 0, link) //nolint:errcheck // the network may lose packets
		}
	}
}

// start makes the internet answer.
func (i *internet) start() (err error) {
	i.Capture, err = startCapture(i.NS, "eth0", internetAnswer)
	return err
}

// htons converts to the network's byte order.
func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}
