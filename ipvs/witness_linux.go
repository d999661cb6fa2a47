package ipvs

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/witness"
)

// Witness waits until another program changes the companion tables, and returns that program. Of
// changes of virtual servers the kernel does not tell. It makes Backend a [dataplane.Witness].
func (b *Backend) Witness(ctx context.Context) (dataplane.Program, error) {
	k := &b.kernel
	g, err := witness.Wait(ctx, k.ns, k.nf, func(c witness.Change) bool {
		return c.Table == b.kernel.table
	})
	if err != nil {
		return dataplane.Program{}, fmt.Errorf("ipvs: witness: %w", err)
	}
	return dataplane.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
