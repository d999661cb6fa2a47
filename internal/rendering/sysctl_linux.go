package rendering

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kernlb/kernlb/internal/threadns"
)

// path is the sysctl for all interfaces (ip-sysctl.rst).
const path = "/proc/sys/net/ipv4/conf/all/route_localnet"

// RouteLocalnet reads and writes the sysctl of one network namespace.
type RouteLocalnet struct{ NS *threadns.NS }

// Get reports whether the sysctl is on. Without IPv4 it is off.
func (s *RouteLocalnet) Get() (bool, error) {
	var value []byte
	err := s.NS.Do(func() (err error) {
		value, err = os.ReadFile(path)
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

// Set turns it on or off.
func (s *RouteLocalnet) Set(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := s.NS.Do(func() error {
		return os.WriteFile(path, []byte(value), 0)
	}); err != nil {
		return fmt.Errorf("set sysctl route_localnet to %s: %w", value, err)
	}
	return nil
}
