//go:build !linux

package diagnose

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/netns"
)

// Run is not supported on this operating system.
func Run(context.Context, *Config) (*Report, error) { return nil, errors.ErrUnsupported }

// Follow is not supported on this operating system.
func Follow(context.Context, *Config, netip.AddrPort) (*livetrace.Trace, error) {
	return nil, errors.ErrUnsupported
}

// FindNamespace is not supported on this operating system.
func FindNamespace(netip.Addr) (netns.Namespace, error) { return "", errors.ErrUnsupported }
