package threadns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/wait"
)

// Turn is a lock on a network namespace: flock(2) on the file of the namespace. Each namespace has
// one lock on the machine, and one Turn at a time holds it. The kernel releases it when the holder
// ends, even if it is killed. Any local user can take the lock. So a process never waits longer
// than a second for a stranger, or longer than ten seconds for the same process, and only fairness
// may depend on the lock. A Turn is not safe for use by several goroutines.
type Turn struct {
	file     *os.File
	patience time.Duration
	stuck    bool // the last wait was in vain: another process holds the lock for long
}

// usualPatience is the time that a Turn waits while the same process holds the lock. If each
// process in a queue holds the lock briefly, the Turn waits to the end of the queue.
const usualPatience = 10 * time.Second

// A stranger is a holder of the lock that runs neither as root nor as the user of this process, or
// that this process cannot see. A stranger may hold the lock with malicious intent. So after
// strangePatience, the wait ends when strangeLooks attempts in a row find a stranger.
const (
	strangePatience = time.Second
	strangeLooks    = 4
)

// minPause and maxPause limit the pause between two attempts to take the lock. Pauses grow with the
// time waited: the attempts of a hundred waiting processes must not keep the holder off its
// processor. courtesy is the pause of a newcomer while other processes wait, so that each of them
// tries first.
const (
	minPause = 20 * time.Microsecond
	maxPause = 50 * time.Millisecond
	courtesy = 4 * time.Millisecond
)

// OpenTurn prepares the lock of a network namespace.
func OpenTurn(at netns.Namespace) (*Turn, error) {
	file, err := at.Open()
	if err != nil {
		return nil, err
	}
	return &Turn{file: file, patience: usualPatience}, nil
}

// Lock waits for the lock, until the context ends. If the same process holds the lock for the whole
// patience, Lock returns without the lock, and later calls do not wait until a call finds the lock
// free. While other processes wait, a newcomer lets them try first, so a process that takes the
// lock again and again does not keep them out. release gives the lock back; without the lock, it
// does nothing. The error is the context's, or says that the Turn is closed.
func (t *Turn) Lock(ctx context.Context) (release func(), err error) {
	start := time.Now()
	for t.othersWait() && time.Since(start) < maxPause {
		if err := wait.For(ctx, courtesy); err != nil {
			return nil, err
		}
	}

	strange, holder, since := 0, 0, start
	for pause := minPause; ; pause = min(2*pause, maxPause/2+rand.N(maxPause/2)) {
		switch err := unix.Flock(t.fd(), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			t.stuck = false
			return func() { _ = unix.Flock(t.fd(), unix.LOCK_UN) }, nil
		case errors.Is(err, unix.EBADF):
			return nil, fmt.Errorf("lock the network namespace: %w", kernelerr.ErrClosed)
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("lock the network namespace: %w", err)
		}

		if time.Since(start) >= min(strangePatience, t.patience) {
			switch peer := t.peer(); {
			case peer == 0:
				strange++
			case holder != 0 && peer != holder:
				since = time.Now()
				fallthrough
			default:
				holder, strange = peer, 0
			}
		}

		if t.stuck || time.Since(since) >= t.patience || strange == strangeLooks {
			t.stuck = true
			return func() {}, nil
		}

		if pause == minPause {
			t.waiting(unix.F_RDLCK)
			defer t.waiting(unix.F_UNLCK)
		}

		if err := wait.For(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (t *Turn) fd() int { return int(t.file.Fd()) }

// waiting tells other processes that this Turn waits (F_RDLCK), or no longer waits (F_UNLCK). It
// sets a read lock on the open file description (fcntl(2), F_OFD_SETLK). Many processes can hold
// such a lock at once, and it is independent of flock(2).
func (t *Turn) waiting(typ int16) {
	_ = unix.FcntlFlock(uintptr(t.fd()), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Len: 1})
}

// othersWait reports whether a write lock would conflict with the read locks of waiting processes.
func (t *Turn) othersWait() bool {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	err := unix.FcntlFlock(uintptr(t.fd()), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type != unix.F_UNLCK
}

// peer returns the process that holds the lock if it runs as root or as the user of this process,
// and 0 otherwise. The kernel lists locks in /proc/locks, as "1: FLOCK ADVISORY WRITE PID
// MAJOR:MINOR:INODE 0 EOF". It leaves out locks of processes that this one cannot see (fs/locks.c,
// locks_show).
func (t *Turn) peer() (pid int) {
	var ns unix.Stat_t
	if err := unix.Fstat(t.fd(), &ns); err != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], fmt.Sprintf(":%d", ns.Ino)) {
			continue
		}
		var holder unix.Stat_t
		err := unix.Stat("/proc/"+f[4], &holder)
		if err == nil && (holder.Uid == 0 || int(holder.Uid) == os.Geteuid()) {
			pid, _ = strconv.Atoi(f[4])
		}
		return pid
	}

	return 0
}

// Close gives the lock back and releases the namespace. A nil or closed Turn has nothing to
// release.
func (t *Turn) Close() error {
	if t == nil {
		return nil
	}
	return closeOnce(t.file)
}

// closeOnce closes a file that may be closed.
func closeOnce(file *os.File) error {
	if err := file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
