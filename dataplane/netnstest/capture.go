package netnstest

import (
	"context"
	"fmt"
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
	missed  int
	changed chan struct{} // nil unless somebody waits; closed at the next packet
}

// Capture starts recording on the interface, or on all of them if iface is empty. Packets that pass
// after it returned are recorded: before rules see them when they arrive, after that when they
// leave.
func (ns *NS) Capture(iface string) (*Capture, error) {
	return startCapture(ns, iface, nil)
}

// Packets returns what was recorded so far, in order.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.packets)
}

// Missed returns how many packets passed unrecorded because there were too many.
func (c *Capture) Missed() int {
	dropped := c.socket.dropped()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missed += dropped
	return c.missed
}

// Reset forgets what was recorded.
func (c *Capture) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets, c.missed = nil, 0
}

// Wait returns the first recorded packet that matches, waiting for it until ctx ends. Reset must
// not be called meanwhile.
func (c *Capture) Wait(ctx context.Context, match func(Packet) bool) (Packet, error) {
	for seen := 0; ; {
		packets, changed := c.watch()
		if i := slices.IndexFunc(packets[seen:], match); i >= 0 {
			return packets[seen+i], nil
		}
		seen = len(packets)
		select {
		case <-ctx.Done():
			return Packet{}, fmt.Errorf("netnstest: %s: none of %d packets is the one: %w",
				c.ns.name, seen, ctx.Err())
		case <-changed:
		}
	}
}

// watch returns what was recorded, and a channel that is closed when there is more.
func (c *Capture) watch() ([]Packet, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.packets, c.changed
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
