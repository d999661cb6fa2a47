//go:build !linux

package rawnl

import (
	"time"

	"golang.org/x/net/bpf"
)

// Listener exists here so that callers compile. This operating system has no multicast groups of
// netlink.
type Listener struct{}

// Listen returns [ErrNotSupported].
func Listen([]uint32, int) (*Listener, error) { return nil, ErrNotSupported }

// Join returns [ErrNotSupported].
func (l *Listener) Join([]uint32) error { return ErrNotSupported }

// Leave returns [ErrNotSupported].
func (l *Listener) Leave([]uint32) error { return ErrNotSupported }

// Receive returns [ErrNotSupported].
func (l *Listener) Receive([]byte) (int, error) { return 0, ErrNotSupported }

// SetFilter returns [ErrNotSupported].
func (l *Listener) SetFilter([]bpf.Instruction) error { return ErrNotSupported }

// SetDeadline returns [ErrNotSupported].
func (l *Listener) SetDeadline(time.Time) error { return ErrNotSupported }

// Close does nothing.
func (l *Listener) Close() error { return nil }
