//go:build !linux

package nfnl

import "syscall"

// errRestart is ERESTART as most Linux architectures number it.
const errRestart = syscall.Errno(85)

// openSocket returns [ErrNotSupported].
func openSocket(int) (socket, error) { return nil, ErrNotSupported }
