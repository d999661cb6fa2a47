//go:build !linux

package conntrack

import (
	"errors"
	"net/netip"

	"github.com/kernlb/kernlb/internal/threadns"
)

// ends is a stub: only Linux can reach the ends of connections.
type ends struct{ ns *threadns.NS }

func (e *ends) source(netip.Addr) (netip.Addr, error) { return netip.Addr{}, errors.ErrUnsupported }

func (e *ends) send([]byte, netip.Addr) error { return errors.ErrUnsupported }

func (e *ends) close() error { return nil }
