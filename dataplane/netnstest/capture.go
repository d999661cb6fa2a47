package netnstest

import (
	"slices"
	"sync"
)

// maxCaptured bounds the packets that a Capture keeps, about 100 bytes each.
const maxCaptured = 1 << 17

// Capture records the IP packets that pass an interface, until it is closed.
type Capture struct {
	ns     *NS
	socket *packetSocket

	mu      sync.Mutex
	packets []Packet
}

// Capture starts recording on the interface, or on all interfaces if iface is empty. It records the
// packets that pass after it returned. Arriving packets are recorded before rules see them, leaving
// packets after that.
func (ns *NS) Capture(iface string) (*Capture, error) {
	return startCapture(ns, iface, nil)
}

// Packets returns the packets recorded so far, in order: the first 131,072 at most.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.packets)
}

// record adds a packet.
func (c *Capture) record(p Packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.packets) < maxCaptured {
		c.packets = append(c.packets, p)
	}
}

// Close ends the recording. The recorded packets stay readable.
func (c *Capture) Close() error {
	c.ns.disown(c)
	return c.socket.Close()
}
