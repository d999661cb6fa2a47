package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// write commits a change set. If r is given, or if the node no longer serves a family, it also
// removes the base chains and tables that become empty.
func (b *backend) write(ctx context.Context, c *servicemodel.ChangeSet, r *raw) (
	backends.Stats, error,
) {
	rules := c.New.Rules()
	err := b.kernel.sysctls.Look(ctx, &b.found.sysctls, sysctls.Loopback(&rules))
	if err != nil {
		return backends.Stats{}, err
	}
	if b.found.unversioned {
		if err := b.giveVersion(ctx); err != nil {
			return backends.Stats{}, err
		}
	}

	p := b.plan(c)
	leaves := slices.ContainsFunc(nft.Families[:], func(f *nft.Family) bool {
		return b.state.present[f] && !f.ServedBy(&p.next.rules)
	})
	if r == nil && leaves {
		var err error
		if r, _, err = b.kernel.readAll(ctx, b.l); err != nil {
			return backends.Stats{}, err
		}
	}

	if r != nil {
		p.sweep(r)
	}
	var stats backends.Stats
	err = b.kernel.sysctls.Around(ctx, &b.found.sysctls, p.sysctls, func() (err error) {
		stats, err = b.commit(ctx, p)
		return err
	})
	if err == nil {
		b.committed(p)
	}
	return stats, err
}

// commitTries limits the attempts to send a transaction while other programs change rules in a
// shared chain between the reading of the handles and the commit.
const commitTries = 5

// commit sends the transaction of a plan.
func (b *backend) commit(ctx context.Context, p *plan) (stats backends.Stats, err error) {
	if p.empty() {
		return backends.Stats{}, nil
	}
	k := &b.kernel
	for try := 1; ; try++ {
		known, err := b.handles(ctx, p)
		if err == nil {
			k.batch.Reset()
			stats = p.encode(&k.batch, known)
			err = k.conn.Commit(ctx, &k.batch, 0)
		}

		if err == nil {
			break
		}
		if !conflicts(err) || try == commitTries {
			return backends.Stats{}, err
		}
		same, asked := k.stillAt(ctx, b.l, b.found.versions)
		if asked != nil || !same {
			return backends.Stats{}, errors.Join(err, asked)
		}
	}

	// If another program also committed, the kernel's generation is a later one, and the next check
	// notices it.
	k.gen = rawnl.NextGenID(k.gen)
	if k.batch.Size() > keepBatch {
		k.batch = rawnl.Batch{}
	}
	return stats, nil
}

// keepBatch is the largest size of a batch that keeps its memory for the next commit.
const keepBatch = 1 << 20

// handles reads the handles of the rules that a plan changes. It verifies that the plan was made
// for these rules.
func (b *backend) handles(ctx context.Context, p *plan) (map[chainID]handles, error) {
	edited := p.edited()
	known := make(map[chainID]handles, len(edited))
	for _, x := range edited {
		found, err := b.kernel.reader.rules(ctx, x.id, x.shared)
		if err != nil {
			return nil, err
		}
		h, ok := b.l.handlesOf(x, found)
		if !ok {
			return nil, fmt.Errorf("%s is not as it was read: %w", x.id, kernelerr.ErrConflict)
		}
		known[x.id] = h
	}

	return known, nil
}

// versionTries limits the attempts of giveVersion.
const versionTries = 20

// giveVersion gives a version to an instance that has no version, for example after "iptables -X".
// Two writers that do so at the same time have no version that conflicts. So only this transaction
// requires that the generation of the ruleset has not changed.
func (b *backend) giveVersion(ctx context.Context) error {
	k := &b.kernel
	for range versionTries {
		gen, err := k.conn.GenID(ctx)
		if err != nil {
			return err
		}
		none, err := k.stillAt(ctx, b.l, nil)
		if err != nil {
			return err
		}
		if !none {
			return fmt.Errorf("the instance has a version by now: %w", kernelerr.ErrConflict)
		}
		b.found.nextVersion = newVersion()
		r := b.l.renew(&b.found, homeOf(&b.state.rules), true)
		k.batch.Reset()
		newEncoder(&k.batch).encodeVersion(r)
		err = k.conn.Commit(ctx, &k.batch, gen.ID)
		if err == nil {
			b.found.versions, b.found.nextVersion = []chainID{r.next}, newVersion()
			b.found.unversioned = false
			return nil
		}

		if !errors.Is(err, rawnl.ErrGenerationChanged) {
			return err
		}
	}

	return fmt.Errorf("the ruleset keeps changing: %w", kernelerr.ErrConflict)
}
