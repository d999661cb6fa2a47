package nftables

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/servicemodel"
)

// commitRemoval removes the objects of owners from tables of another layout. If no frontend is
// left, it deletes the tables, whatever their layout.
func (b *backend) commitRemoval(ctx context.Context, left int) (backends.Stats, error) {
	if left == 0 {
		if err := b.restoreSysctls(ctx); err != nil {
			return backends.Stats{}, err
		}
	}

	stats, err := b.send(ctx, b.pl.Removal(left))
	if err != nil && left == 0 {
		err = errors.Join(err, b.resumeSysctls(ctx))
	}
	if err == nil && left == 0 {
		b.pl.Rules, b.pl.Sysctls = servicemodel.Rules{}, sysctls.State{}
	}
	b.observed = false
	return stats, err
}
