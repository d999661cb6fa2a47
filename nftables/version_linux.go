package nftables

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// giveTries limits the attempts to give a version while other programs commit. Each attempt takes
// less than a millisecond.
const giveTries = 20

// giveVersion gives a version to tables that lost theirs, in a separate transaction that fails if
// any other commit comes first. The next transaction, which replaces the tables, increments the
// version. So of two writers that found no version, the second one fails. If giveVersion finds a
// version, it fails, because another writer has written since the tables were observed.
func (b *backend) giveVersion(ctx context.Context) error {
	k := &b.kernel
	for try := 1; ; try++ {
		gen, err := k.reader.Conn.GenID(ctx)
		if err != nil {
			return err
		}
		if err := k.reader.RequireVersion(ctx, b.pl.Table, form.Version{}); err != nil {
			return err
		}
		v := form.Version{Home: b.pl.Standing().Family, Epoch: b.pl.FirstEpoch(), Number: 1}
		k.batch.Reset()
		w := nft.NewEncoder(&k.batch, v.Home, b.pl.Table)
		w.AddSet(form.VersionSet(v.Epoch))
		w.Elements(nft.Add, form.VersionSet(v.Epoch), v.Elem(v.Number))
		err = k.reader.Conn.Commit(ctx, &k.batch, gen.ID)
		if err == nil {
			b.pl.Version, k.gen = v, rawnl.NextGenID(k.gen)
		}
		if !errors.Is(err, rawnl.ErrGenerationChanged) || try == giveTries {
			return err
		}
	}
}
