package iptables

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

// probePrefix is the prefix of the chains in the probe's transaction.
const probePrefix = "K_PROBE"

// probe opens a backend, which asks for the matches and targets, and asks the kernel to check the
// transaction that would write a ruleset.
func probe(ctx context.Context, cfg *Config) error {
	b, err := New(cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	return b.judge(ctx)
}

// judge asks the kernel to check the transaction that would write a ruleset. Afterwards the backend
// cannot be used for anything else. [Backend.Check] refuses services that need optional features of
// the kernel, such as IPv6, so the transaction has none of these. The base chains are those of
// iptables. It is no refusal if they exist already.
func (b *Backend) judge(ctx context.Context) error {
	c, err := kernelprobe.Changes(false, 0)
	if err != nil {
		return err
	}
	noIPv6 := b.l.noIPv6
	b.l = newLayout(probePrefix)
	b.l.noIPv6 = noIPv6
	if _, err := b.adopt(&raw{}); err != nil {
		return err
	}
	var batch rawnl.Batch
	b.plan(c).encode(&batch, nil)
	return kernelprobe.Explain(b.kernel.check(ctx, &batch), &batch, kernelprobe.Running())
}
