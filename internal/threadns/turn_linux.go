package threadns

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Turn is a lock on a network namespace, of which there is one on the machine, held by one Turn at a
// time: flock(2) on the file of the namespace. The kernel lets go of it when the holder ends, however
// that ends. Anybody who can open the namespace can take it, so it must not be waited for without end,
// and nothing may depend on it but fairness. A Turn is not safe for use by several goroutines.
type Turn struct {
	file  *os.File
	stuck bool // it was waited for in vain: somebody holds it for long
}

// Pauses between two attempts to take a turn.
const (
	minPause = 20 * time.Microsecond
	maxPause = 2 * time.Millisecond
)

// OpenTurn prepares the lock of the network namespace of a file descriptor, or that of the calling
// thread for 0.
func OpenTurn(fd int) (*Turn, error) {
	path := threadNetNS
	if fd != 0 { // a duplicate would share its lock with the descriptor
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace to lock it: %w", err)
	}
	return &Turn{file: file}, nil
}

// Take waits for the lock, at most for the time given; then it returns without. After that, it does not
// wait again until it finds the lock free. release gives the lock back, if it was taken. The error is
// the context's.
func (t *Turn) Take(ctx context.Context, patience time.Duration) (release func(), err error) {
	start := time.Now()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if unix.Flock(int(t.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			t.stuck = false
			return func() { _ = unix.Flock(int(t.file.Fd()), unix.LOCK_UN) }, nil
		}
		if t.stuck || time.Since(start) >= patience {
			t.stuck = true
			return func() {}, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// Close gives the lock back and lets go of the namespace.
func (t *Turn) Close() error { return t.file.Close() }
