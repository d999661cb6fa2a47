package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// routeLocalnet lets the kernel route packets to and from loopback addresses beyond the loopback interface. (ip-sysctl.rst)
const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// sysctl reads and writes routeLocalnet in one network namespace.
type sysctl struct{ netns int }

// open keeps a network namespace, given by a file descriptor or 0 for that of the calling thread.
func (s *sysctl) open(netns int) (err error) {
	if netns == 0 {
		s.netns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		s.netns, err = unix.FcntlInt(uintptr(netns), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	return nil
}

func (s *sysctl) close() error { return unix.Close(s.netns) }

// get reports whether it is on. Where there is no IPv4 it is off.
func (s *sysctl) get() (bool, error) {
	var value []byte
	err := s.inside(func() (err error) {
		value, err = os.ReadFile(routeLocalnet)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read sysctl route_localnet: %w", err)
	}
	return bytes.HasPrefix(value, []byte("1")), nil
}

func (s *sysctl) set(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := s.inside(func() error { return os.WriteFile(routeLocalnet, []byte(value), 0) }); err != nil {
		return fmt.Errorf("set sysctl route_localnet to %s: %w", value, err)
	}
	return nil
}

// inside calls f on a thread that is in the namespace: what lies under /proc/sys/net is looked up in the network namespace of the thread
// that opens it (net_ctl_header_lookup in net/sysctl_net.c).
func (s *sysctl) inside(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		defer unix.Close(own)
		if same(own, s.netns) {
			runtime.UnlockOSThread()
			result <- f()
			return
		}
		if err := unix.Setns(s.netns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		result <- f()
		// A thread that cannot go back ends with its goroutine.
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-result
}

// same reports whether two descriptors are of one namespace.
func same(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}
