//go:build !linux

package conntrack

import "github.com/kernlb/kernlb/internal/threadns"

import "net/netip"

// ends reaches the ends of connections. It cannot here.
type ends struct{ ns *threadns.NS }

func (e *ends) source(netip.Addr) (netip.Addr, error) { return netip.Addr{}, ErrNotSupported }

func (e *ends) send([]byte, netip.Addr) error { return ErrNotSupported }

func (e *ends) close() error { return nil }
