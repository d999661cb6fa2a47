//go:build !linux

package rawnl

import (
	"syscall"

	"github.com/kernlb/kernlb/dataplane/netns"
)

// errRestart is ERESTART in the numbering of most Linux architectures.
const errRestart = syscall.Errno(85)

// Protocols of netlink. They have no effect on this system.
const (
	protocolNetfilter = iota
	protocolGeneric
)

// openSocket returns [ErrNotSupported].
func openSocket(int, netns.Namespace) (Socket, error) { return nil, ErrNotSupported }
