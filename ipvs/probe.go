package ipvs

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelprobe"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/refusal"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) dataplane.Candidate {
	return kernelprobe.Candidate(Name, func(ctx context.Context) error {
		return probe(ctx, cfg)
	}, func() (*Backend, error) { return New(cfg) })
}

// probeTable is the name of the companion tables that the kernel is asked about.
const probeTable = "kernlb.probe"

// probe asks the kernel for IPVS, then has it check the transaction that would write companion
// tables with everything in them. It does not ask for schedulers, nor for dummy devices: the kernel
// loads their modules when the first virtual server wants them, or the device is made.
func probe(ctx context.Context, cfg *Config) error {
	b, err := New(cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	b.pl.cfg.Table = probeTable
	changes, err := kernelprobe.Changes(true)
	if err != nil {
		return err
	}
	b.pl.assume(nil)
	var batch rawnl.Batch
	b.pl.plan(changes).encode(&batch, stageRestrict)
	return kernelprobe.Explain(b.kernel.check(ctx, &batch), &batch, kernelprobe.Running())
}

// assume makes the planner believe that the kernel holds nothing, on a node with these addresses
// and nothing to do about its network.
func (pl *planner) assume(local []netip.Addr) {
	pl.have, pl.tunables = newObserved(), nil
	pl.have.addresses.node = local
}

// explain says what permission is missing, or what the kernel lacks.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return refusal.NoPermission("CAP_NET_ADMIN in the initial user namespace, for IPVS", err)
	}
	return kernelprobe.Explain(err, nil, kernelprobe.Running())
}
