package nftables

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) backends.Candidate {
	return rendering.Candidate(Name, func() (*backend, error) { return openBackend(cfg) },
		(*backend).probe)
}

// probeTable is the name of the tables in the probe's transaction.
const probeTable = "kernlb.probe"

// probe lets the kernel check the transaction that would write tables with every feature. The
// kernel is usable if it accepts the transaction for one family.
func (b *backend) probe(ctx context.Context) error {
	err := b.judge(ctx, 0)
	if !lacking(err) {
		return err
	}
	for _, f := range nft.Families {
		if b.judge(ctx, f.Model) == nil {
			return nil
		}
	}

	return err
}

// judge lets the kernel check tables with every feature, for one family or, if only is zero, for
// both. The error names the feature that the kernel lacks.
func (b *backend) judge(ctx context.Context, only servicemodel.Family) error {
	c, err := rendering.Changes(true, only)
	if err != nil {
		return err
	}
	pl := plan.NewPlanner(probeTable, form.RandomEpoch)
	var batch rawnl.Batch
	pl.Plan(c).Encode(&batch)
	return nft.Explain(b.kernel.check(ctx, &batch), &batch, nft.Running())
}

func lacking(err error) bool {
	return errors.Is(err, kernelerr.ErrMissingModule) || errors.Is(err, kernelerr.ErrKernelTooOld)
}

// probeAgain is the time for which a negative result of a probe is kept.
const probeAgain = time.Minute

// lacks determines whether the kernel lacks a feature for the table of a family, unless the answer
// is known. If the kernel lacks the feature for the other table, too, the family is not the reason,
// and the commit fails.
func (b *backend) lacks(f *nft.Family) error {
	l := &b.lacking[nft.FamilyIndex(f.Any)]
	if l.probed.IsZero() || l.err != nil && time.Since(l.probed) > probeAgain {
		*l = lack{probed: time.Now()}
		err := b.judge(context.Background(), f.Model)
		if lacking(err) && slices.ContainsFunc(nft.Families[:], func(o *nft.Family) bool {
			return o != f && b.judge(context.Background(), o.Model) == nil
		}) {
			l.err = err
		}
	}

	return l.err
}
