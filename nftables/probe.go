package nftables

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelprobe"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) dataplane.Candidate {
	return kernelprobe.Candidate(Name, func(ctx context.Context) error {
		return probe(ctx, cfg)
	}, func() (*Backend, error) { return New(cfg) })
}

// probeTable is the name of the tables in the probe's transaction.
const probeTable = "kernlb.probe"

// probe asks the kernel to check the transaction that would write tables with every feature. A
// kernel that accepts it only for IPv4 is usable.
func probe(ctx context.Context, cfg *Config) error {
	b, err := New(cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	c, err := kernelprobe.Changes(true)
	if err != nil {
		return err
	}
	p := probePlan(c)
	if err = b.judge(ctx, p); lacking(err) {
		p.tables[nft.FamilyIndex(nft.IPv6.Any)] = tablePlan{}
		if b.judge(ctx, p) == nil {
			err = nil
		}
	}
	return err
}

// probePlan plans tables with everything in a change set.
func probePlan(c *servicemodel.ChangeSet) *plan {
	pl := newPlanner(probeTable, randomEpoch)
	return pl.plan(c)
}

// judge asks the kernel to check a plan, and says what the kernel lacks.
func (b *Backend) judge(ctx context.Context, p *plan) error {
	var batch rawnl.Batch
	p.encode(&batch)
	return kernelprobe.Explain(b.kernel.check(ctx, &batch), &batch, kernelprobe.Running())
}

func lacking(err error) bool {
	return errors.Is(err, dataplane.ErrMissingModule) || errors.Is(err, dataplane.ErrKernelTooOld)
}

// askAgain is how long the answer of a kernel that lacks something is kept.
const askAgain = time.Minute

// checkIPv6 reports the services with IPv6 addresses if the kernel cannot have a table for them. If
// no such table exists yet, it asks the kernel.
func (b *Backend) checkIPv6(c *servicemodel.ChangeSet) error {
	six := func(fc servicemodel.Change[servicemodel.Frontend]) bool {
		return fc.New != nil && fc.New.Key.Addr.Is6()
	}
	needed := slices.ContainsFunc(c.Frontends, six) ||
		len(nft.IPv6.Own(c.New.Rules().ServiceCIDRs)) > 0
	if b.pl.noIPv6 = needed && b.lacksIPv6(); !b.pl.noIPv6 {
		return nil
	}
	k := rendering.NewChecker(Name, c)
	k.IPv6(func(servicemodel.FrontendKey) bool { return true }, b.noIPv6.Error())
	return k.Err()
}

// lacksIPv6 asks the kernel whether it can have a table of IPv6, unless that is already known.
func (b *Backend) lacksIPv6() bool {
	if b.pl.tables[nft.FamilyIndex(nft.IPv6.Any)].exists {
		return false
	}
	if b.asked.IsZero() || b.noIPv6 != nil && time.Since(b.asked) > askAgain {
		b.noIPv6, b.asked = nil, time.Now()
		if c, err := kernelprobe.Changes(true); err == nil {
			if err := b.judge(context.Background(), probePlan(c)); lacking(err) {
				b.noIPv6 = err
			}
		}
	}
	return b.noIPv6 != nil
}
