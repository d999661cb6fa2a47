//go:build !linux

package conntrack

import (
	"errors"
	"net/netip"

	"github.com/kernlb/kernlb/internal/threadns"
)

// ends reaches the ends of connections. It cannot here.
type ends struct{ ns *threadns.NS }

func (e *ends) source(netip.Addr) (netip.Addr, error) { return netip.Addr{}, errors.ErrUnsupported }

func (e *ends) send([]byte, netip.Addr) error { return errors.ErrUnsupported }

func (e *ends) close() error { return nil }
