package nftables

import (
	"context"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Cleanup deletes both tables. It does not touch tables that have none of the instance's marks,
// unless [Config.TakeOver] is set. A separate transaction first deletes the chains that drop and
// reject packets.
func (b *backend) Cleanup(ctx context.Context) (backends.Stats, error) {
	start := time.Now()
	b.observed = false
	if err := b.restoreSysctls(ctx); err != nil {
		return backends.Stats{}, fmt.Errorf("nftables: cleanup: %w", err)
	}
	stats, err := b.kernel.deleteTables(ctx, b.pl.Table)
	if err != nil {
		return backends.Stats{}, b.failed("cleanup", err)
	}
	b.pl.Rules, b.pl.Sysctls = servicemodel.Rules{}, sysctls.State{}
	stats.Duration = time.Since(start)
	return stats, nil
}

// deleteTables first deletes the base chains that drop and reject, and then both tables. When the
// kernel deletes a table, it empties the maps at once, but removes the chains from their hooks one
// by one, which takes milliseconds. Meanwhile, the chains would drop packets that are no longer
// translated, even if another backend serves them.
func (k *kernel) deleteTables(ctx context.Context, table string) (backends.Stats, error) {
	k.batch.Reset()
	var tables rawnl.Batch
	for _, f := range nft.Families {
		r, err := k.reader.Table(ctx, f, table)
		if err != nil {
			return backends.Stats{}, err
		}
		if !r.Exists || k.reader.RequireOurs(r) != nil {
			continue
		}
		for _, name := range form.FilterChains {
			if _, exists := r.Chains[name]; exists {
				nft.NewEncoder(&k.batch, f, table).DeleteChain(name)
			}
		}

		nft.NewEncoder(&tables, f, table).DeleteTable()
	}

	stats, err := k.commit(ctx)
	if err != nil {
		return stats, err
	}
	k.batch = tables
	last, err := k.commit(ctx)
	return stats.Plus(last), err
}
