//go:build !linux

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
)

// network is not there.
type network struct{ index int }

func (n *network) open(*Config, uint32) error {
	return fmt.Errorf("not supported on this operating system: %w", errors.ErrUnsupported)
}
func (n *network) close() error                            { return nil }
func (n *network) changed() bool                           { return true }
func (n *network) addresses() (*addresses, error)          { return nil, errors.ErrUnsupported }
func (n *network) misled() ([]string, error)               { return nil, errors.ErrUnsupported }
func (n *network) settled(map[string]string) (bool, error) { return false, errors.ErrUnsupported }
func (n *network) lead() error                             { return errors.ErrUnsupported }
func (n *network) unlead() error                           { return errors.ErrUnsupported }
func (n *network) setSysctls(map[string]string) error      { return errors.ErrUnsupported }
func (n *network) usesIptables() bool                      { return true }
func (n *network) made() ([]string, error)                 { return nil, errors.ErrUnsupported }
func (n *network) makeDevice() error                       { return errors.ErrUnsupported }
func (n *network) removeDevice(string) error               { return errors.ErrUnsupported }
func (n *network) bind(netip.Addr) error                   { return errors.ErrUnsupported }
func (n *network) release(boundAddr) error                 { return errors.ErrUnsupported }
func (n *network) readSysctl(string) (string, error)       { return "", errors.ErrUnsupported }
func (n *network) readSysctls(map[string]string) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}
