package iptables

import (
	"context"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// check has the kernel judge a transaction that does not take place.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error { return k.conn.Check(ctx, b) }
