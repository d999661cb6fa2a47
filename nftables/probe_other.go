//go:build !linux

package nftables

import (
	"context"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func (k *kernel) check(context.Context, *rawnl.Batch) error { return notSupported("probe") }
