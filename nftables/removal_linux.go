package nftables

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// commitRemoval removes the objects of owners from tables of another layout. If no frontend is
// left, it deletes the tables, of any layout.
func (b *backend) commitRemoval(ctx context.Context, left int) (dataplane.Stats, error) {
	off := false
	if left == 0 {
		var err error
		if off, err = b.cleanupLocalnet(ctx); err != nil {
			return dataplane.Stats{}, err
		}
	}
	stats, err := b.send(ctx, b.pl.Removal(left))
	if err != nil && off {
		err = errors.Join(err, b.kernel.localnet.Set(true)) // the tables stay and need it
	}
	if err == nil && left == 0 {
		b.pl.Rules, b.pl.Localnet = servicemodel.Rules{}, form.Localnet{}
	}
	b.observed = false
	return stats, err
}
