package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// write plans a change set and commits it. If r is given, the plan also removes what is then
// empty.
func (b *Backend) write(ctx context.Context, c *servicemodel.ChangeSet, r *raw) (
	dataplane.Stats, *plan, error,
) {
	if err := b.lookAtGuards(ctx, c); err != nil {
		return dataplane.Stats{}, nil, err
	}
	if b.found.unversioned {
		if err := b.giveVersion(ctx); err != nil {
			return dataplane.Stats{}, nil, err
		}
	}
	p := b.plan(c)
	if r != nil {
		p.sweep(r)
	}
	stats, err := b.send(ctx, p)
	return stats, p, err
}

// lookAtGuards finds out what there is about route_localnet, if node ports begin or cease to
// answer at localhost: others may have changed it since the kernel was observed.
func (b *Backend) lookAtGuards(ctx context.Context, c *servicemodel.ChangeSet) error {
	next := c.New.Rules()
	was, want := b.l.localhost(nft.IPv4, &b.state.rules), b.l.localhost(nft.IPv4, &next)
	if was == want {
		return nil
	}
	n, err := b.kernel.readGuards(ctx, b.l)
	if err != nil {
		return err
	}
	if was {
		n.before = b.found.localnet.before
	}
	b.found.localnet = n
	return nil
}

// versionTries bounds how often it is tried to give a version to an instance that has none.
const versionTries = 20

// giveVersion gives a version to an instance that lost it, by "iptables -X", or never had one.
// Nothing in the instance tells two writers that do so at the same time from each other, so
// here, and in no other transaction, it is the generation of the ruleset that must not have
// changed.
func (b *Backend) giveVersion(ctx context.Context) error {
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
			return fmt.Errorf("the instance has a version by now: %w", dataplane.ErrConflict)
		}
		r := renewal{next: newVersion(), made: true}
		k.batch.Reset()
		newEncoder(&k.batch).encodeVersion(&r, b.l)
		err = k.conn.Commit(ctx, &k.batch, gen.ID)
		if err == nil {
			b.found.versions = []uint32{r.next}
			return nil
		}
		if !errors.Is(err, rawnl.ErrGenerationChanged) {
			return err
		}
	}
	return fmt.Errorf("the ruleset keeps changing: %w", dataplane.ErrConflict)
}

// send commits a plan. The sysctl that lets packets to loopback addresses in is on only while
// the rule that guards them is there.
func (b *Backend) send(ctx context.Context, p *plan) (dataplane.Stats, error) {
	k := &b.kernel
	if p.localnet == sysctlOff {
		if err := k.sysctl.Set(false); err != nil {
			return dataplane.Stats{}, err
		}
	}
	stats, err := b.commit(ctx, p)
	if err == nil && p.localnet == sysctlOn {
		err = k.sysctl.Set(true)
	}
	return stats, err
}

// commitTries bounds how often a transaction is sent again since somebody else changed rules in
// a chain that is shared, between the look at the handles and the commit.
const commitTries = 5

// commit sends the transaction of a plan.
func (b *Backend) commit(ctx context.Context, p *plan) (stats dataplane.Stats, err error) {
	if p.empty() {
		return dataplane.Stats{}, nil
	}
	for try := 1; ; try++ {
		stats, err = b.transact(ctx, p)
		if !conflicts(err) || try == commitTries {
			return stats, err
		}
		same, asked := b.kernel.stillAt(ctx, b.l, b.found.versions)
		if asked != nil || !same {
			return stats, errors.Join(err, asked)
		}
	}
}

// transact sends the transaction of a plan once.
func (b *Backend) transact(ctx context.Context, p *plan) (dataplane.Stats, error) {
	known, err := b.handles(ctx, p)
	if err != nil {
		return dataplane.Stats{}, err
	}
	k := &b.kernel
	k.batch.Reset()
	stats := p.encode(&k.batch, known)
	if err := k.conn.Commit(ctx, &k.batch, 0); err != nil {
		return dataplane.Stats{}, err
	}
	// If anybody else committed as well, the generation is a later one, and the next look finds
	// out.
	k.gen = rawnl.NextGenID(k.gen)
	if k.batch.Size() > keepBatch {
		k.batch = rawnl.Batch{}
	}
	return stats, nil
}

// keepBatch is the size up to which the memory of a batch is kept for the next.
const keepBatch = 1 << 20
