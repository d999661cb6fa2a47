//go:build !linux

package nodeaddrs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

var errNotSupported = fmt.Errorf("not supported on this operating system: %w",
	errors.ErrUnsupported)

// kernel is a stub: only Linux reports its addresses.
type kernel struct{}

func (k *kernel) open(*Config) error                     { return errNotSupported }
func (k *kernel) close() error                           { return nil }
func (k *kernel) current([]string) ([]netip.Addr, error) { return nil, errNotSupported }

// Watch is not supported on this operating system.
func (s *Source) Watch(context.Context, func()) error { return errNotSupported }
