package conntrack

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetNS is the network namespace of the calling thread.
const threadNetNS = "/proc/thread-self/ns/net"

// netns is a network namespace that is held open.
type netns struct {
	file *os.File
	dev  uint64
	ino  uint64
}

// openNetNS holds the network namespace fd, or that of the calling thread for 0.
func openNetNS(fd int) (*netns, error) {
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
	return &netns{file: file, dev: st.Dev, ino: st.Ino}, nil
}

func (n *netns) close() error { return n.file.Close() }

// do runs fn on a thread that is in the namespace. Entering a namespace takes CAP_SYS_ADMIN; nothing is
// entered if the calling thread is there already, as it is in a program that never leaves its own.
func (n *netns) do(fn func() error) error {
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

// enter is do for a goroutine of its own: if the thread cannot be brought back, it stays locked, and the
// runtime ends it with the goroutine.
func (n *netns) enter(fn func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(threadNetNS)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace of the thread: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	err = fn()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
