package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Observe reads both tables. It asks for the elements that are wanted, in time linear in their
// number. A dump takes quadratic time. Linux 6.16 and newer tell how many elements a set has, and
// so whether there are other elements. An observation is Partial if only a dump of a large map
// would find them. On older kernels it is always Partial if a map is large.
func (b *backend) Observe(ctx context.Context, want *servicemodel.Table) (*backends.Observation,
	error) {
	b.observed = false
	k := &b.kernel
	s, err := k.reader.Tables(ctx, b.pl.Table, b.crowded)
	if err != nil {
		return nil, readError("observe", err)
	}
	for _, r := range s.Tables {
		if !r.Stands() {
			continue
		}
		if err := k.reader.Elements(ctx, r, want); err != nil {
			return nil, readError("observe", err)
		}
	}

	if err := k.reader.RequireVersion(ctx, b.pl.Table, s.Version); err != nil {
		return nil, readError("observe", err)
	}
	t, err := s.Merge(want)
	if err != nil {
		return nil, err
	}
	k.gen = s.Gen
	o := b.remember(s, t)
	return o, b.lookAtSysctls(ctx, o)
}
