package netnstest

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
)

// maxCaptured bounds the packets a Capture keeps, about 100 bytes each.
const maxCaptured = 1 << 17

// Packet is one captured IP packet.
type Packet struct {
	// Proto is the transport protocol. Src and Dst carry ports for TCP, UDP and SCTP, else port 0.
	Proto    Protocol
	Src, Dst netip.AddrPort
	// TCPFlags is the 14th byte of a TCP header: FIN 0x01, SYN 0x02, RST 0x04, PSH 0x08, ACK 0x10.
	TCPFlags uint8
	// Type and Code are those of an ICMP message. Type is also that of the first chunk of an SCTP packet.
	Type, Code uint8
	// Outgoing: the packet left the namespace, else it arrived.
	Outgoing bool
}

// String returns the packet in a few words: "tcp 10.244.1.1:40000 > 10.96.0.1:80".
func (p Packet) String() string {
	return fmt.Sprintf("%s %s > %s", p.Proto, p.Src, p.Dst)
}

// Capture records the IP packets that pass an interface, until it is closed.
type Capture struct {
	ns     *NS
	socket *packetSocket

	mu      sync.Mutex
	packets []Packet
	missed  int
	changed chan struct{} // closed and replaced at each packet somebody waits for
}

// Capture starts recording on the interface, or on all of them if iface is empty. Packets that pass after it
// returned are recorded, before rules see them when arriving and after when leaving (see AF_PACKET, packet(7)).
func (ns *NS) Capture(iface string) (*Capture, error) {
	return openCapture(ns, iface)
}

// Packets returns what was recorded so far, in order.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Packet(nil), c.packets...)
}

// Missed returns how many packets were not recorded because there were too many.
func (c *Capture) Missed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.missed
}

// Reset forgets what was recorded.
func (c *Capture) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets, c.missed = nil, 0
}

// Wait returns the first recorded packet that matches, waiting for it until ctx ends.
func (c *Capture) Wait(ctx context.Context, match func(Packet) bool) (Packet, error) {
	seen := 0
	for {
		c.mu.Lock()
		packets := c.packets
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		for ; seen < len(packets); seen++ {
			if match(packets[seen]) {
				return packets[seen], nil
			}
		}
		select {
		case <-ctx.Done():
			return Packet{}, fmt.Errorf("netnstest: %s: no such packet among %d: %w", c.ns.name, seen, ctx.Err())
		case <-changed:
			seen = min(seen, len(packets))
		}
	}
}

// record adds a packet.
func (c *Capture) record(p Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.packets) >= maxCaptured {
		c.missed++
		return
	}
	c.packets = append(c.packets, p)
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Close ends the recording; what was recorded stays readable.
func (c *Capture) Close() error {
	c.ns.disown(c)
	return c.socket.Close()
}

// Internet is the far end of the node's default route. It answers every TCP, UDP and SCTP packet, whatever its
// destination, as a server named [InternetName] does, and records all that arrives.
type Internet struct {
	// Capture holds the packets that arrived from the node, and the answers.
	*Capture
	// NS is its namespace. It has no addresses.
	NS *NS
}
