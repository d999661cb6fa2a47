package iptables

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kernlb/kernlb/internal/threadns"
)

// routeLocalnet lets the kernel route packets to and from loopback addresses beyond the loopback
// interface. (ip-sysctl.rst)
const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// sysctl reads and writes routeLocalnet in one network namespace.
type sysctl struct{ ns *threadns.NS }

// get reports whether it is on. Where there is no IPv4 it is off.
func (s *sysctl) get() (bool, error) {
	var value []byte
	err := s.ns.Do(func() (err error) {
		value, err = os.ReadFile(routeLocalnet)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read sysctl route_localnet: %w", err)
	}
	return bytes.HasPrefix(value, []byte("1")), nil
}

func (s *sysctl) set(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := s.ns.Do(func() error {
		return os.WriteFile(routeLocalnet, []byte(value), 0)
	}); err != nil {
		return fmt.Errorf("set sysctl route_localnet to %s: %w", value, err)
	}
	return nil
}
