package ipvs

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
)

// Witness waits until another program changes the companion tables, and returns that program. The
// kernel does not report changes of virtual servers. It makes the backend a [dataplane.Witness].
func (b *backend) Witness(ctx context.Context) (dataplane.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.ns, k.nf, func(c nft.Changed) bool {
		return c.Table == b.kernel.table
	})
	if err != nil {
		return dataplane.Program{}, fmt.Errorf("ipvs: witness: %w", err)
	}
	return dataplane.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
