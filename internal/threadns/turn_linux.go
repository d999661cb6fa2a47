package threadns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/sleep"
)

// Turn is a lock on a network namespace, of which there is one on the machine, held by one Turn at
// a time: flock(2) on the file of the namespace. The kernel lets go of it when the holder ends,
// however that ends. Anybody who can open the namespace can take it, so it must not be waited for
// without end, and nothing may depend on it but fairness. A Turn is not safe for use by several
// goroutines.
type Turn struct {
	file  *os.File
	stuck bool // it was waited for in vain: somebody holds it for long
}

// Pauses between two attempts to take a turn, and the steps in which newcomers leave time to those
// who wait already, until each of them has had an attempt. Pauses grow with the time waited: where
// a hundred processes wait, their attempts must not keep the one that has the turn from its
// processor.
const (
	minPause = 20 * time.Microsecond
	maxPause = 50 * time.Millisecond
	courtesy = 4 * time.Millisecond
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

// Take waits for the lock, at most for the time given; then it returns without. After that, it does
// not wait again until it finds the lock free. Who comes while others wait lets them go first, so
// that one who takes it again and again does not keep others out. release gives the lock back, if
// it was taken. The error is the context's.
func (t *Turn) Take(ctx context.Context, patience time.Duration) (release func(), err error) {
	start := time.Now()
	for t.othersWait() && time.Since(start) < maxPause {
		if err := sleep.For(ctx, courtesy); err != nil {
			return nil, err
		}
	}
	defer t.waiting(unix.F_UNLCK)
	for pause := minPause; ; pause = min(2*pause, maxPause/2+rand.N(maxPause/2)) {
		if unix.Flock(t.fd(), unix.LOCK_EX|unix.LOCK_NB) == nil {
			t.stuck = false
			return func() { _ = unix.Flock(t.fd(), unix.LOCK_UN) }, nil
		}
		if t.stuck || time.Since(start) >= patience {
			t.stuck = true
			return func() {}, nil
		}
		if pause == minPause {
			t.waiting(unix.F_RDLCK)
		}
		if err := sleep.For(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (t *Turn) fd() int { return int(t.file.Fd()) }

// waiting tells the others that this one waits, with F_RDLCK, or that it does no more, with
// F_UNLCK: by a read lock on the open file description (fcntl(2), F_OFD_SETLK), of which there can
// be many beside each other. It is apart from the lock of flock(2).
func (t *Turn) waiting(typ int16) {
	_ = unix.FcntlFlock(uintptr(t.fd()), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Len: 1})
}

// othersWait reports whether others wait: whether a write lock would meet their read locks.
func (t *Turn) othersWait() bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	err := unix.FcntlFlock(uintptr(t.fd()), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type != unix.F_UNLCK
}

// Close gives the lock back and lets go of the namespace. Nil has neither.
func (t *Turn) Close() error {
	if t == nil {
		return nil
	}
	return t.file.Close()
}
