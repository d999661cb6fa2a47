//go:build unix

package proxy

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copySocket copies a socket. The method File of net would do if its file did not make the socket
// block when it is passed on, for all who have it.
func copySocket(c syscall.Conn) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	err = raw.Control(func(s uintptr) { fd, failed = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}
