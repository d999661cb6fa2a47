//go:build !linux

// Package threadns works in network namespaces, which this operating system does not have.
package threadns

import (
	"errors"
	"fmt"
)

// NS is a network namespace. There are none here.
type NS struct{}

// Open fails.
func Open(int) (*NS, error) { return nil, errNotSupported }

// Close does nothing.
func (n *NS) Close() error { return nil }

// FD is no file descriptor.
func (n *NS) FD() int { return -1 }

// Do fails.
func (n *NS) Do(func() error) error { return errNotSupported }

var errNotSupported = fmt.Errorf("no network namespaces on this operating system: %w",
	errors.ErrUnsupported)
