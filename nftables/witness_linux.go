package nftables

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
)

// Witness waits until another program changes the tables, and returns that program. It makes
// the backend a [dataplane.Witness].
func (b *backend) Witness(ctx context.Context) (dataplane.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.localnet.NS, k.conn, func(c nft.Changed) bool {
		return c.Table == b.pl.table
	})
	if err != nil {
		return dataplane.Program{}, fmt.Errorf("nftables: witness: %w", err)
	}
	return dataplane.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
