package ipvs

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
)

// Candidate offers this backend to [dataplane.Probe] and [dataplane.Choose].
func Candidate(cfg *Config) backends.Candidate {
	return rendering.Candidate(Name, func() (*backend, error) { return openBackend(cfg) },
		(*backend).probe)
}

// probeTable is the name of the companion tables in the probe's transaction.
const probeTable = "kernlb.probe"

// probe lets the kernel check the transaction that would write companion tables with every feature.
// IPVS was already checked when the backend was opened. probe does not check schedulers or dummy
// devices: the kernel loads their modules when the first virtual server needs them, or when the
// device is created.
func (b *backend) probe(ctx context.Context) error {
	b.pl.cfg.Table = probeTable
	changes, err := rendering.Changes(true, 0)
	if err != nil {
		return err
	}
	b.pl.assume(nil)
	batch := b.pl.plan(changes).batch(stageRestrict)
	return nft.Explain(b.kernel.check(ctx, batch), batch, nft.Running())
}

// assume makes the planner assume an empty kernel on a node with these addresses, whose network
// needs no change.
func (pl *planner) assume(local []netip.Addr) {
	pl.have, pl.tunables = newObserved(), nil
	pl.have.addresses.node = local
}

// explain names the missing permission, or the feature that the kernel lacks.
func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return kernelerr.NoPermission("CAP_NET_ADMIN in the initial user namespace, for IPVS", err)
	}
	return nft.Explain(err, nil, nft.Running())
}
