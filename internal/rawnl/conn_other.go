//go:build !linux

package rawnl

import "syscall"

// errRestart is ERESTART as most Linux architectures number it.
const errRestart = syscall.Errno(85)

// Protocols of netlink, of which there is none.
const (
	protocolNetfilter = iota
	protocolGeneric
)

// openSocket returns [ErrNotSupported].
func openSocket(_, _ int) (Socket, error) { return nil, ErrNotSupported }
