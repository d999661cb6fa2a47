//go:build !linux

package iptables

import (
	"context"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
)

type kernel struct {
	rendering.Unsupported
	lacks lacking
}

func (k *kernel) open(*Config) error { return rendering.NotSupported("open") }

func (k *kernel) check(context.Context, *rawnl.Batch) error {
	return rendering.NotSupported("probe")
}
