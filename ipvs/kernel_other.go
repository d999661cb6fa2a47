//go:build !linux

package ipvs

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
)

type kernel struct{ rendering.Unsupported }

func (k *kernel) open(*Config) error { return rendering.NotSupported("open") }

func (k *kernel) check(context.Context, *rawnl.Batch) error {
	return rendering.NotSupported("probe")
}

// Watch is not supported on this operating system.
func (b *backend) Watch(context.Context, func()) error { return rendering.NotSupported("watch") }

// Counters is not supported on this operating system.
type Counters struct{}

// OpenCounters is not supported on this operating system.
func OpenCounters(*Config) (*Counters, error) {
	return nil, rendering.NotSupported("open counters")
}

// Close does nothing.
func (c *Counters) Close() error { return nil }

// Read is not supported on this operating system.
func (c *Counters) Read(context.Context) (*counters.Reading, error) {
	return nil, rendering.NotSupported("read counters")
}
