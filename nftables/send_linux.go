package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/nftables/internal/plan"
)

func (b *backend) send(ctx context.Context, p *plan.Plan) (backends.Stats, error) {
	k := &b.kernel
	elements, size := p.Load()
	if size > min(oneStep, k.room) && b.inSteps(p) {
		return b.sendInSteps(ctx, p)
	}
	k.batch.Reset()
	p.Encode(&k.batch)
	stats, err := k.commit(ctx)
	stats.Elements = elements
	return stats, err
}
