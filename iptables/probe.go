package iptables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) backends.Candidate {
	return rendering.Candidate(Name, func() (*backend, error) { return openBackend(cfg) },
		(*backend).judge)
}

// probePrefix is the prefix of the chains in the probe's transaction.
const probePrefix = "K_PROBE"

// judge lets the kernel check the transaction that would write a ruleset. The matches and targets
// were already checked when the backend was opened. Afterwards b cannot be used for anything else.
// [Check] refuses services that need optional features of the kernel, such as a family, so the
// transaction has none of these. The base chains are those of iptables. The kernel accepts them if
// they exist already.
func (b *backend) judge(ctx context.Context) error {
	only := servicemodel.Family(0)
	if f := b.kernel.lacks.lacking; f != nil {
		only = nft.Families[1-nft.FamilyIndex(f.Any)].Model
	}
	c, err := rendering.Changes(false, only)
	if err != nil {
		return err
	}
	b.l = newLayout(probePrefix)
	if _, err := b.adopt(&raw{}); err != nil {
		return err
	}
	var batch rawnl.Batch
	b.plan(c).encode(&batch, nil)
	return nft.Explain(b.kernel.check(ctx, &batch), &batch, nft.Running())
}
