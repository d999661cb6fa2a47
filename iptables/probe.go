package iptables

import (
	"context"
	"errors"
	"fmt"
	"syscall"

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

// probePrefix is what the names of the chains begin with that the kernel is asked about.
const probePrefix = "K_PROBE"

// probe opens a backend, which asks for the matches and targets, and has the kernel check the
// transaction that would write a ruleset. What the kernel may lack without harm, since
// [Backend.Check] tells, is not asked about. The base chains are those of iptables: that they are
// there already is no refusal.
func probe(ctx context.Context, cfg *Config) error {
	b, err := New(cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	c, err := kernelprobe.Changes(false)
	if err != nil {
		return err
	}
	b.l = newLayout(probePrefix)
	if _, err := b.adopt(&raw{}); err != nil {
		return err
	}
	var batch rawnl.Batch
	b.plan(c).encode(&batch, nil)
	return kernelprobe.Explain(b.kernel.check(ctx, &batch), &batch, kernelprobe.Running())
}

// explain says what a kernel lacks on which a backend cannot be opened.
func explain(err error) error {
	// the answer of nfnetlink about a subsystem that it does not know
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("%w nft_compat: %w", dataplane.ErrMissingModule, err)
	}
	return kernelprobe.Explain(err, nil, kernelprobe.Running())
}
