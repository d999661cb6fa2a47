package main

import (
	"net/netip"
	"os"
	"syscall"
	"time"
)

// connectLimit is how long a handshake may take.
const connectLimit = 10 * time.Second

// connection is the file descriptor of a TCP connection.
type connection int

// Close resets the connection.
func (c connection) Close() error {
	_ = syscall.SetsockoptLinger(int(c), syscall.SOL_SOCKET, syscall.SO_LINGER,
		&syscall.Linger{Onoff: 1})
	return syscall.Close(int(c))
}

// errInterrupted says that a signal, such as the Go scheduler's own, interrupted the call, so its
// time is worthless.
var errInterrupted = syscall.EINTR

// dialHere connects on the calling thread, which is in the namespace of the client. net.Dialer may
// use another thread. Only system calls run between the start of the handshake and its end.
func dialHere(to netip.AddrPort) (connection, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	limit := syscall.NsecToTimeval(connectLimit.Nanoseconds())
	err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit)
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrInet4{Addr: to.Addr().As4(),
			Port: int(to.Port())})
	}
	if err != nil {
		syscall.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return connection(fd), nil
}
