package nftables

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) dataplane.Candidate {
	return rendering.Candidate(Name, func() (*backend, error) { return openBackend(cfg) },
		(*backend).probe)
}

// probeTable is the name of the tables in the probe's transaction.
const probeTable = "kernlb.probe"

// probe asks the kernel to check the transaction that would write tables with every feature. A
// kernel that accepts it for one family is usable.
func (b *backend) probe(ctx context.Context) error {
	err := b.judge(ctx, 0)
	if !lacking(err) {
		return err
	}
	for _, t := range b.pl.tables {
		if b.judge(ctx, t.f.Model) == nil {
			return nil
		}
	}
	return err
}

// judge asks the kernel to check tables with everything, of one family or, if only is zero, of
// both. It says what the kernel lacks.
func (b *backend) judge(ctx context.Context, only servicemodel.Family) error {
	c, err := rendering.Changes(true, only)
	if err != nil {
		return err
	}
	pl := newPlanner(probeTable, randomEpoch)
	var batch rawnl.Batch
	pl.plan(c).encode(&batch)
	return nft.Explain(b.kernel.check(ctx, &batch), &batch, nft.Running())
}

func lacking(err error) bool {
	return errors.Is(err, dataplane.ErrMissingModule) || errors.Is(err, dataplane.ErrKernelTooOld)
}

// askAgain is how long the answer of a kernel that lacks something is kept.
const askAgain = time.Minute

// lacks asks the kernel what it lacks for a table, unless that is already known. If the kernel
// lacks it for the other tables, too, the family is not the reason, and the commit fails.
func (b *backend) lacks(t *table) error {
	if t.asked.IsZero() || t.lacks != nil && time.Since(t.asked) > askAgain {
		t.lacks, t.asked = nil, time.Now()
		err := b.judge(context.Background(), t.f.Model)
		if lacking(err) && slices.ContainsFunc(b.pl.tables, func(o *table) bool {
			return o != t && b.judge(context.Background(), o.f.Model) == nil
		}) {
			t.lacks = err
		}
	}
	return t.lacks
}
