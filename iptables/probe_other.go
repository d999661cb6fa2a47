//go:build !linux

package iptables

import (
	"context"

	"github.com/kernlb/kernlb/internal/nfnl"
)

func (k *kernel) check(context.Context, *nfnl.Batch) error { return notSupported("probe") }
