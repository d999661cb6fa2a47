package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// locked is the abstract socket that a process holds as long as it writes the instance. Each
// network namespace has its own, and the kernel closes it with the process.
const locked = "@kernlb-loadbalancer"

// lock makes this process the only writer of the instance in this network namespace.
func lock() (unlock func(), err error) {
	l, err := net.Listen("unix", locked)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another loadbalancer runs here%s: stop it first", holder())
	}
	if err != nil {
		return nil, fmt.Errorf("find out whether another loadbalancer runs: %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// holder names the process that holds the lock, if it can be found.
func holder() (text string) {
	c, err := net.Dial("unix", locked)
	if err != nil {
		return ""
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	_ = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			text = fmt.Sprintf(" (process %d)", cred.Pid)
		}
	})
	return text
}
