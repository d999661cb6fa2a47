// Package threadns does something in another network namespace: a thread goes there and comes back.
package threadns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetNS is the network namespace of the calling thread.
const threadNetNS = "/proc/thread-self/ns/net"

// NS is a network namespace that is held open.
type NS struct {
	file *os.File
	dev  uint64
	ino  uint64
}

// Open holds the network namespace of a file descriptor, or that of the calling thread for 0.
func Open(fd int) (*NS, error) {
	var file *os.File
	switch {
	case fd < 0:
		return nil, fmt.Errorf("NetNS: %d is not a file descriptor", fd)
	case fd == 0:
		var err error
		if file, err = os.Open(threadNetNS); err != nil {
			return nil, fmt.Errorf("open the network namespace of the thread: %w", err)
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

// Close lets go of the namespace.
func (n *NS) Close() error { return n.file.Close() }

// FD is a file descriptor of the namespace, until it is closed.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Do runs fn on a thread that is in the namespace. Entering a namespace takes CAP_SYS_ADMIN;
// nothing is entered if the calling thread is there already, as it is in a program that never
// leaves its own.
func (n *NS) Do(fn func() error) error {
	runtime.LockOSThread()
	var st unix.Stat_t
	if err := unix.Stat(threadNetNS, &st); err == nil && st.Dev == n.dev && st.Ino == n.ino {
		defer runtime.UnlockOSThread()
		return fn()
	}
	runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() { done <- n.enter(fn) }()
	return <-done
}

// enter is Do for a goroutine of its own: if the thread cannot be brought back, it stays locked,
// and the runtime ends it with the goroutine.
func (n *NS) enter(fn func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(threadNetNS)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace of the thread: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = fn()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
