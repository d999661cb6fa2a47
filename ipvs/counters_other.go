//go:build !linux

package ipvs

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/counters"
)

// Counters are not there.
type Counters struct{}

// OpenCounters is not supported on this operating system.
func OpenCounters(*Config) (*Counters, error) { return nil, notSupported("open counters") }

// Close does nothing.
func (c *Counters) Close() error { return nil }

// Read is not supported on this operating system.
func (c *Counters) Read(context.Context) (*counters.Reading, error) {
	return nil, notSupported("read counters")
}
