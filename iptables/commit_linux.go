package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// write commits a change set. If r is given, or if the node no longer serves a family, it also
// removes the base chains and tables that are then empty.
func (b *backend) write(ctx context.Context, c *servicemodel.ChangeSet, r *raw) (
	dataplane.Stats, error,
) {
	if err := b.lookAtGuards(ctx, c); err != nil {
		return dataplane.Stats{}, err
	}
	if b.found.unversioned {
		if err := b.giveVersion(ctx); err != nil {
			return dataplane.Stats{}, err
		}
	}
	p := b.plan(c)
	if r == nil && b.leaves(p) {
		var err error
		if r, _, err = b.kernel.readAll(ctx, b.l); err != nil {
			return dataplane.Stats{}, err
		}
	}
	if r != nil {
		p.sweep(r)
	}
	if err := b.kernel.before(p.localnet); err != nil {
		return dataplane.Stats{}, err
	}
	stats, err := b.commit(ctx, p)
	if err == nil {
		err = b.kernel.after(p.localnet)
	}
	if err == nil {
		b.committed(p)
	}
	return stats, err
}

// leaves reports whether a plan removes a family that the node no longer serves.
func (b *backend) leaves(p *plan) bool {
	return slices.ContainsFunc(nft.Families[:], func(f *nft.Family) bool {
		return b.state.present[f] && !f.ServedBy(&p.next.rules)
	})
}

// commitTries bounds how often a transaction is sent again because another program changed rules in
// a shared chain between the reading of the handles and the commit.
const commitTries = 5

// commit sends the transaction of a plan.
func (b *backend) commit(ctx context.Context, p *plan) (stats dataplane.Stats, err error) {
	if p.empty() {
		return dataplane.Stats{}, nil
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
			return dataplane.Stats{}, err
		}
		same, asked := k.stillAt(ctx, b.l, b.found.versions)
		if asked != nil || !same {
			return dataplane.Stats{}, errors.Join(err, asked)
		}
	}
	// If another program committed as well, the kernel's generation is a later one, and the next
	// check finds out.
	k.gen = rawnl.NextGenID(k.gen)
	if k.batch.Size() > keepBatch {
		k.batch = rawnl.Batch{}
	}
	return stats, nil
}

// keepBatch is the size up to which a batch keeps its memory for the next commit.
const keepBatch = 1 << 20

// handles reads the handles of the rules that a plan changes. It makes sure that these are the
// rules for which the plan was made.
func (b *backend) handles(ctx context.Context, p *plan) (map[chainID]handles, error) {
	edited := p.edited()
	known := make(map[chainID]handles, len(edited))
	for _, x := range edited {
		read := b.kernel.reader.rules
		if x.shared {
			read = b.kernel.reader.sharedRules
		}
		found, err := read(ctx, x.id)
		if err != nil {
			return nil, err
		}
		h, ok := b.l.handlesOf(x, found)
		if !ok {
			return nil, fmt.Errorf("%s is not as it was read: %w", x.id, dataplane.ErrConflict)
		}
		known[x.id] = h
	}
	return known, nil
}
