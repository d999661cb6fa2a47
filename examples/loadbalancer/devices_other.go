//go:build !linux

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
)

// lock does nothing, because the program balances on Linux only.
func lock() (unlock func(), err error) { return func() {}, nil }

// haveDevice knows devices on Linux only.
func haveDevice(name string) error {
	return fmt.Errorf("%s: %w", name, errors.ErrUnsupported)
}

// syncDevices binds addresses on Linux only.
func syncDevices(want map[netip.Addr]string, _ *slog.Logger) error {
	if len(want) == 0 {
		return nil
	}
	return fmt.Errorf("bind addresses: %w", errors.ErrUnsupported)
}
