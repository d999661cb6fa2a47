package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

var _ backends.PartReader = (*backend)(nil)

// ObserveParts reads the parts of owners by requesting their elements, which the index of owners
// lists. It takes about a millisecond, whatever the number of other owners' objects. If an owner's
// frontends have source ranges, the reading dumps all source ranges. If an owner has UDP node
// ports, it dumps all frontends.
//
// If the index is incomplete, or if sets, chains or the version are damaged, ObserveParts reads
// everything. The next commit then repairs the tables without losing other owners' objects.
func (b *backend) ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (
	*backends.Observation, error) {
	doubted := b.doubted
	b.observed, b.doubted = false, form.Version{}
	p := read.NewParts(&b.kernel.reader, b.pl.Table, owners, want, doubted)
	t, err := p.Run(ctx, b.crowded)
	if err != nil {
		return nil, readError("observe parts", err)
	}
	alone := false
	if want.Len() == 0 {
		if alone, err = p.OnlyOwners(ctx, t); err != nil {
			return nil, readError("observe parts", err)
		}
	}

	b.kernel.gen = p.Gen
	o := b.remember(p.Snapshot, t)
	o.OnlyOwners = alone
	b.pl.Owning = &plan.Owning{Owners: owners, Whole: p.Whole}
	return o, b.lookAtSysctls(ctx, o)
}

// Owners lists the owners of frontends.
func (b *backend) Owners(ctx context.Context) ([]string, error) {
	return b.kernel.reader.Owners(ctx, b.pl.Table)
}
