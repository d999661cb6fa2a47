//go:build !linux

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
)

// network is not there.
type network struct{}

func (n *network) open(int, uint32) error {
	return fmt.Errorf("not supported on this operating system: %w", errors.ErrUnsupported)
}
func (n *network) close() error                     { return nil }
func (n *network) addresses() ([]netip.Addr, error) { return nil, errors.ErrUnsupported }
func (n *network) routed() bool                     { return false }
func (n *network) prepare(map[string]string) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}
func (n *network) restore(map[string]string) error { return errors.ErrUnsupported }
