package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Observe reads both tables. It requests the elements of the desired state, which takes time linear
// in their number; a dump takes quadratic time. Linux 6.16 and newer report the number of elements
// of a set, which shows whether the set has further elements. An observation is Partial if only a
// dump of a large map would find them. On older kernels it is Partial whenever a map is large.
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
