package iptables

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/witness"
)

// Witness waits until another program changes a chain of the instance, or deletes rules of a base
// chain, and returns that program. It makes Backend a [dataplane.Witness].
func (b *Backend) Witness(ctx context.Context) (dataplane.Program, error) {
	k := &b.kernel
	g, err := witness.Wait(ctx, k.sysctl.NS, k.conn, func(c witness.Change) bool {
		return b.l.names.owned(c.Chain) || c.Deleted && (c.Table == "nat" || c.Table == "filter")
	})
	if err != nil {
		return dataplane.Program{}, fmt.Errorf("iptables: witness: %w", err)
	}
	return dataplane.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
