// Package threadns runs functions in another network namespace. Its lock lets the programs that
// write in a namespace take turns.
package threadns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
)

// threadNetNS is the file of the calling thread's network namespace.
const threadNetNS = "/proc/thread-self/ns/net"

// NS is a network namespace that is held open.
type NS struct {
	file *os.File
	dev  uint64
	ino  uint64
}

// Open holds the network namespace of a file descriptor; 0 means the calling thread's.
func Open(fd int) (*NS, error) {
	var file *os.File
	var err error
	switch {
	case fd < 0:
		return nil, fmt.Errorf("NetNS: %d is not a file descriptor", fd)
	case fd == 0:
		if file, err = Current(); err != nil {
			return nil, err
		}
	default:
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("NetNS: duplicate file descriptor %d: %w", fd, err)
		}
		file = os.NewFile(uintptr(dup), "network namespace")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("NetNS: stat: %w", err)
	}
	return &NS{file: file, dev: st.Dev, ino: st.Ino}, nil
}

// Current opens the network namespace of the calling thread.
func Current() (*os.File, error) {
	file, err := os.Open(threadNetNS)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace of the thread: %w", err)
	}
	return file, nil
}

// Close releases the namespace. A nil or closed NS has nothing to release.
func (n *NS) Close() error {
	if n == nil {
		return nil
	}
	return closeOnce(n.file)
}

// FD returns a file descriptor of the namespace. It is valid until Close.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Do runs fn on a thread that is in the namespace. To enter a namespace, it needs CAP_SYS_ADMIN. If
// the calling thread is in the namespace already, Do enters nothing, so a program that never leaves
// its namespace needs no privilege. After Close, the error is [kernelerr.ErrClosed].
func (n *NS) Do(fn func() error) error {
	if int(n.file.Fd()) < 0 {
		return fmt.Errorf("enter the network namespace: %w", kernelerr.ErrClosed)
	}
	runtime.LockOSThread()
	var st unix.Stat_t
	if err := unix.Stat(threadNetNS, &st); err == nil && st.Dev == n.dev && st.Ino == n.ino {
		defer runtime.UnlockOSThread()
		return fn()
	}
	runtime.UnlockOSThread()
	return In(n.file, fn)
}

// In runs fn on a thread of its own, in the network namespace of a file.
func In(file *os.File, fn func() error) error {
	return OnThread(func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// ErrEnded is the result of a function that ended its goroutine instead of returning.
var ErrEnded = errors.New("the function did not return")

// OnThread runs fn on a thread that runs nothing else meanwhile. So fn may move the thread into
// another network namespace; OnThread then brings it back. If that fails, the thread stays locked
// to its goroutine, and the runtime ends the thread with the goroutine.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := ErrEnded
		defer func() { done <- err }()
		runtime.LockOSThread()
		home, openErr := Current()
		if openErr != nil {
			err = openErr
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
		}()
		err = fn()
	}()
	return <-done
}
