//go:build !linux

package counters

import (
	"context"
	"errors"
	"fmt"
)

func notSupported(what string) error {
	return fmt.Errorf("counters: %s: not supported on this operating system: %w", what,
		errors.ErrUnsupported)
}

// Counters cannot be opened on this operating system.
type Counters struct{}

// Open is not supported on this operating system.
func Open(*Config) (*Counters, error) { return nil, notSupported("open") }

// Close does nothing.
func (c *Counters) Close() error { return nil }

// Start is not supported on this operating system.
func (c *Counters) Start(context.Context) error { return notSupported("start") }

// Stop is not supported on this operating system.
func (c *Counters) Stop(context.Context) error { return notSupported("stop") }

// Read is not supported on this operating system.
func (c *Counters) Read(context.Context) (*Reading, error) { return nil, notSupported("read") }
