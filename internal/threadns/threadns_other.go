//go:build !linux

// Package threadns works in network namespaces, which this operating system does not have.
package threadns

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane/netns"
)

// NS is a network namespace. There are none here.
type NS struct{}

// Open fails.
func Open(netns.Namespace) (*NS, error) { return nil, errNotSupported }

// Close does nothing.
func (n *NS) Close() error { return nil }

// NetNS names no namespace.
func (n *NS) NetNS() netns.Namespace { return "" }

// Do fails.
func (n *NS) Do(func() error) error { return errNotSupported }

var errNotSupported = fmt.Errorf("no network namespaces on this operating system: %w",
	errors.ErrUnsupported)
