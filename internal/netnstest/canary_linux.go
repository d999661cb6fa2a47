package netnstest

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// canaryTimeout is how long a machine may take for a canary's round trip before a probe gives up on it.
const canaryTimeout = 30 * time.Second

// canary is a byte that is sent to a goroutine and back through the runtime's poller. When a probe has waited in
// vain it sends the canary: what was ready before the canary left is served before it is back, or at least about
// then, so that a server that only lacked processor time has answered by the time the silence is called a drop.
type canary struct {
	mu        sync.Mutex
	near, far *os.File
}

// newCanary starts the goroutine that echoes; it ends with Close.
func newCanary() (*canary, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	c := &canary{near: os.NewFile(uintptr(fds[0]), "canary"), far: os.NewFile(uintptr(fds[1]), "canary")}
	go func() {
		b := make([]byte, 1)
		for {
			if _, err := c.far.Read(b); err != nil {
				return
			}
			if _, err := c.far.Write(b); err != nil {
				return
			}
		}
	}()
	return c, nil
}

// Close ends the canary's goroutine.
func (c *canary) Close() error {
	c.near.Close() //nolint:errcheck // nothing is buffered
	return c.far.Close()
}

// sing makes two round trips: one for a server, one for its client.
func (c *canary) sing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.near.SetDeadline(time.Now().Add(canaryTimeout)); err != nil {
		return err
	}
	b := make([]byte, 1)
	for range 2 {
		if _, err := c.near.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.near, b); err != nil {
			return err
		}
	}
	return nil
}

// singCanary makes the namespace's canary do its round trips.
func (ns *NS) singCanary() error {
	c, err := ns.theCanary()
	if err == nil {
		err = c.sing()
	}
	if err != nil {
		return fmt.Errorf("netnstest: %s: see whether the machine is just slow: %w", ns.name, err)
	}
	return nil
}

// theCanary makes the canary when it is first needed.
func (ns *NS) theCanary() (*canary, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.owned == nil {
		return nil, errClosed
	}
	if ns.canary == nil {
		c, err := newCanary()
		if err != nil {
			return nil, err
		}
		ns.canary = c
		ns.owned[c] = struct{}{}
	}
	return ns.canary, nil
}
