package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelprobe"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) dataplane.Candidate {
	return kernelprobe.Candidate(Name, func(ctx context.Context) error {
		return probe(ctx, cfg)
	}, func() (*Backend, error) { return New(cfg) })
}

// probeTable is the name of the tables that the kernel is asked about.
const probeTable = "kernlb.probe"

// probe has the kernel check the transaction that would write tables with everything in them.
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
	b.pl.table = probeTable
	var batch rawnl.Batch
	b.pl.plan(c).encode(&batch)
	return kernelprobe.Explain(b.kernel.check(ctx, &batch), &batch, kernelprobe.Running())
}
