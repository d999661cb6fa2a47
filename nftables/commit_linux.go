package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// Commit writes a change set in one transaction. The same transaction marks in the kernel the work
// that is left to Settle. If the rules do not know the scheduler of a service yet, an earlier
// transaction adds rules for it. If the socket cannot send the whole change at once, as in an
// unprivileged user namespace, Commit needs several transactions: first new service ports, then
// changed ones, and finally removed ones, each of them whole. If tables must be replaced, they have
// only some of the service ports until the last transaction.
//
// If the instance is new and large, Commit creates the tables in many transactions, so that other
// programs can commit in between. Packets reach the tables only after the last transaction.
func (b *backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	if !b.observed {
		return backends.Stats{}, errNotObserved
	}
	c = b.anew(c)
	stats, err := b.commitPart(ctx, c)
	if errors.Is(err, rawnl.ErrBatchTooLarge) {
		stats, err = rendering.CommitInParts(ctx, c, err, b.commitPart)
	}
	if err != nil {
		return backends.Stats{}, b.failed("commit", err)
	}
	stats.Duration = time.Since(start)
	b.log.Debug("committed", logkey.Backend, Name, logkey.Instance, b.pl.Table, logkey.Messages,
		stats.Messages, logkey.Bytes, stats.Bytes, logkey.Duration, stats.Duration)
	return stats, nil
}

// commitPart writes a change set in one transaction.
func (b *backend) commitPart(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats,
	error) {
	if b.pl.Version.Number == 0 && b.pl.Standing() != nil {
		if err := b.giveVersion(ctx); err != nil {
			return backends.Stats{}, err
		}
	}

	if b.pl.Owning != nil && b.pl.Removes(c) {
		return b.commitRemoval(ctx, c.New.Len())
	}
	rare := len(b.pl.Sysctls.Records) > 0 || c.Rules != nil ||
		slices.ContainsFunc(c.Pools, func(pc servicemodel.Change[servicemodel.Pool]) bool {
			return pc.Old != nil && pc.New != nil && pc.Old.Scheduler != pc.New.Scheduler
		})
	var before backends.Stats
	if rare {
		var err error
		if before, err = b.prepare(ctx, c); err != nil {
			return before, err
		}
	}

	p := b.pl.Plan(c)
	if err := b.wake(ctx); err != nil {
		return before, err
	}
	var stats backends.Stats
	err := b.kernel.sysctls.Around(ctx, &b.pl.Sysctls, p.Sysctls, func() (err error) {
		if stats, err = b.send(ctx, p); err != nil {
			return b.notRenewed(p, err)
		}
		b.committed(p)
		return nil
	})
	return stats.Plus(before), err
}

// wake makes dormant tables active before they are rewritten. A transaction that does this cannot
// add base chains.
func (b *backend) wake(ctx context.Context) error {
	k := &b.kernel
	k.batch.Reset()
	for _, t := range b.pl.Tables {
		if t.Held != nil && t.Held.Dormant {
			nft.NewEncoder(&k.batch, t.Family, b.pl.Table).EnsureTable()
		}
	}

	_, err := k.commit(ctx)
	return err
}

// prepare does the work before the transaction that only rare change sets need.
func (b *backend) prepare(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	rules := c.New.Rules()
	err := b.kernel.sysctls.Look(ctx, &b.pl.Sysctls, sysctls.Loopback(&rules))
	if err != nil {
		return backends.Stats{}, err
	}
	p := b.pl.PlanAhead(c)
	if p == nil {
		return backends.Stats{}, nil
	}
	stats, err := b.send(ctx, p)
	if err == nil {
		b.committed(p)
	}
	return stats, err
}

// notRenewed records that the kernel refused to replace a broken table, although no other program
// had committed. The next commit deletes the table first.
func (b *backend) notRenewed(p *plan.Plan, err error) error {
	var errno unix.Errno
	if !slices.ContainsFunc(p.Tables, func(t *plan.TablePlan) bool { return t.Renew }) ||
		!errors.As(err, &errno) || errno == unix.EEXIST || errno == unix.ENOENT {
		return err
	}

	b.pl.Refused = true
	return fmt.Errorf("%w: %w", kernelerr.ErrConflict, err)
}
