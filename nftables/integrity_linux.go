package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Integrity reports whether the instance is as the last Observe or Commit left it. If no program
// has committed to nf_tables since, the instance is intact. Otherwise the version shows whether
// another writer of the instance committed. A check of the tables then detects manual edits: it
// compares chains, rules and sets and, on Linux 6.16 and newer, the numbers of elements. Checks are
// rate-limited, so that another program that commits all the time costs little. A check does not
// notice that one element replaced another, so its best result is Touched.
func (b *backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	if !b.observed || b.pl.Owning != nil {
		return backends.Broken, nil
	}
	on, err := b.kernel.sysctls.Hold(ctx, sysctls.Loopback(&b.pl.Rules))
	if err != nil || !on {
		return backends.Broken, err
	}
	gen, err := b.kernel.reader.Conn.GenID(ctx)
	if err == nil && gen.ID == b.kernel.gen {
		return backends.Intact, nil
	}
	i := backends.Broken
	if err == nil {
		i, err = b.look(ctx)
	}
	if err != nil {
		return backends.Broken, fmt.Errorf("nftables: integrity: %w", err)
	}
	if i == backends.Intact {
		b.kernel.gen = gen.ID
		i = backends.Touched
	}

	return i, nil
}

// look finds out whether commits of other programs changed the instance.
func (b *backend) look(ctx context.Context) (backends.Integrity, error) {
	err := b.kernel.reader.RequireVersion(ctx, b.pl.Table, b.pl.Version)
	if errors.Is(err, rawnl.ErrDumpInterrupted) {
		return backends.Broken, nil
	}
	if err != nil {
		return backends.Broken, err
	}
	start := time.Now()
	if !b.looks.Allow(start) {
		return backends.Touched, nil
	}
	i, err := b.inspect(ctx)
	if i != backends.Broken { // a check that finds damage is free
		b.looks.Spend(time.Since(start))
	}
	return i, err
}

// inspect compares the tables with their expected contents, as far as this is possible without
// reading the elements of services.
func (b *backend) inspect(ctx context.Context) (backends.Integrity, error) {
	result := backends.Intact
	for i, f := range nft.Families {
		r, err := b.kernel.reader.Table(ctx, f, b.pl.Table)
		switch {
		case errors.Is(err, unix.ENOENT):
			return backends.Broken, nil
		case errors.Is(err, rawnl.ErrDumpInterrupted):
			return backends.Touched, nil
		case err != nil:
			return backends.Broken, err
		case r.Exists && !r.Rules.Equal(b.pl.Rules):
			return backends.Broken, nil
		}

		result = max(result, integrityOf(&b.pl.Tables[i].Skeleton, &r.Skeleton))
	}

	return result, nil
}
