//go:build !linux

package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

type kernel struct{ rendering.Unsupported }

func (k *kernel) open(*Config, form.Hooks) error { return rendering.NotSupported("open") }

func (k *kernel) check(context.Context, *rawnl.Batch) error {
	return rendering.NotSupported("probe")
}

// ObserveParts is not supported on this operating system.
func (b *backend) ObserveParts(context.Context, []string, *servicemodel.Table) (
	*backends.Observation, error) {
	return nil, rendering.NotSupported("observe parts")
}

// Owners is not supported on this operating system.
func (b *backend) Owners(context.Context) ([]string, error) {
	return nil, rendering.NotSupported("owners")
}
