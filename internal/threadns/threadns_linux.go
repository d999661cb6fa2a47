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
	"github.com/kernlb/kernlb/dataplane/netns"
)

// threadNetNS is the file of the calling thread's network namespace.
const threadNetNS = "/proc/thread-self/ns/net"

// NS is a network namespace that is held open.
type NS struct {
	file *os.File
	dev  uint64
	ino  uint64
}

// Open holds a network namespace.
func Open(at netns.Namespace) (*NS, error) {
	file, err := at.Open()
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("network namespace: stat: %w", err)
	}

	return &NS{file: file, dev: st.Dev, ino: st.Ino}, nil
}

// Close releases the namespace. A nil or closed NS has nothing to release.
func (n *NS) Close() error {
	if n == nil {
		return nil
	}
	return closeOnce(n.file)
}

// Same reports whether n and o are the same namespace.
func (n *NS) Same(o *NS) bool { return n.dev == o.dev && n.ino == o.ino }

// NetNS names the namespace. The name is valid until Close.
func (n *NS) NetNS() netns.Namespace { return netns.FD(int(n.file.Fd())) }

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

// In runs fn on a separate thread, in the network namespace of a file.
func In(file *os.File, fn func() error) error {
	return OnThread(func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace %s: %w", file.Name(), err)
		}
		return fn()
	})
}

// ErrEnded is the result of a function that ended its goroutine instead of returning.
var ErrEnded = errors.New("the function did not return")

// OnThread runs fn on a thread that runs nothing else during fn. So fn may move the thread into
// another network namespace; OnThread then brings the thread back. If that fails, the thread stays
// locked to its goroutine, and the runtime ends the thread with the goroutine.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := ErrEnded
		defer func() { done <- err }()
		runtime.LockOSThread()
		home, openErr := netns.Namespace("").Open()
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
