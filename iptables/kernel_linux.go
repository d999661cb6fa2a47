package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables: the only part of the package that has a socket.
type kernel struct {
	conn  *nfnl.Conn
	batch nfnl.Batch // what is being committed
	req   nfnl.Batch // requests that read
	// gen is the generation of the ruleset that was last looked at or made.
	gen    uint32
	sysctl sysctl
	lacks  lacking
}

func (k *kernel) open(cfg *Config) error {
	var c nfnl.Config
	if cfg != nil {
		c.NetNS = cfg.NetNS
	}
	conn, err := nfnl.Dial(&c)
	if err != nil {
		return err
	}
	k.conn = conn
	if err := k.sysctl.open(c.NetNS); err != nil {
		return errors.Join(err, conn.Close())
	}
	if err := k.probe(context.Background()); err != nil {
		return errors.Join(err, k.sysctl.close(), conn.Close())
	}
	return nil
}

// Close closes the socket and leaves the kernel as it is.
func (b *Backend) Close() error { return errors.Join(b.kernel.sysctl.close(), b.kernel.conn.Close()) }

// observeTries bounds how often a reading is begun again since somebody committed meanwhile.
const observeTries = 8

// Observe reads both tables of both families.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation, error) {
	b.observed = false
	var err error
	for range observeTries {
		var r *raw
		var gen uint32
		r, gen, err = b.kernel.readAll(ctx)
		if errors.Is(err, dataplane.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("iptables: observe: %w", err)
		}
		b.kernel.gen = gen
		return b.adopt(r)
	}
	return nil, fmt.Errorf("iptables: observe: %w", err)
}

// Integrity compares the ruleset's generation with the one known. If somebody committed, it looks whether the fixed chains, our jumps among
// them, are as they should be; of the chains of services it says nothing. Where node ports answer at localhost, the sysctl counts, too.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	gen, err := b.kernel.conn.GenID(ctx)
	if err != nil {
		return dataplane.Broken, fmt.Errorf("iptables: integrity: %w", err)
	}
	if b.l.localhost(families[0], &b.state.rules) {
		if on, err := b.kernel.sysctl.get(); err != nil || !on {
			return dataplane.Broken, err
		}
	}
	if gen.ID == b.kernel.gen {
		return dataplane.Intact, nil
	}
	whole, err := b.skeletonWhole(ctx)
	if err != nil {
		return dataplane.Broken, fmt.Errorf("iptables: integrity: %w", err)
	}
	if !whole {
		return dataplane.Broken, nil
	}
	b.kernel.gen = gen.ID
	return dataplane.Touched, nil
}

// skeletonWhole reports whether the fixed chains are as they should be.
func (b *Backend) skeletonWhole(ctx context.Context) (bool, error) {
	for i, f := range families {
		if !b.state.present[i] {
			continue
		}
		for _, c := range b.l.fixed(f, &b.state.rules) {
			id := chainID{uint8(i), c.table, c.name}
			found, err := b.kernel.readRules(ctx, id)
			if errors.Is(err, nfnl.ErrDumpInterrupted) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			rules := make([]rule, len(found))
			for j := range found {
				rules[j] = found[j].rule
			}
			if !sameRules(b.l.ours(id, rules, c.rules, c.shared), c.rules) {
				return false, nil
			}
		}
	}
	return true, nil
}

// Commit writes a change set, and repairs what drifted, in one transaction.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p := b.plan(c)
	stats, err := b.send(ctx, p)
	if err != nil {
		return dataplane.Stats{}, b.failed("commit", err)
	}
	b.committed(p)
	stats.Duration = time.Since(start)
	b.log.DebugContext(ctx, "committed", "backend", Name, "prefix", b.l.names.prefix,
		"messages", stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// send commits a plan. The sysctl that lets packets to loopback addresses in is on only while the rule that guards them is there.
func (b *Backend) send(ctx context.Context, p *plan) (dataplane.Stats, error) {
	k := &b.kernel
	if p.localnet == sysctlOff {
		if err := k.sysctl.set(false); err != nil {
			return dataplane.Stats{}, err
		}
	}
	stats, err := b.commit(ctx, p)
	if err == nil && p.localnet == sysctlOn {
		err = k.sysctl.set(true)
	}
	return stats, err
}

func (b *Backend) commit(ctx context.Context, p *plan) (dataplane.Stats, error) {
	if p.empty() {
		return dataplane.Stats{}, nil
	}
	known, err := b.handles(ctx, p)
	if err != nil {
		return dataplane.Stats{}, err
	}
	k := &b.kernel
	k.batch.Reset()
	p.encode(&k.batch, known)
	stats := dataplane.Stats{Messages: k.batch.Len(), Bytes: k.batch.Size()}
	if stats.Messages == 0 {
		return dataplane.Stats{}, nil
	}
	if err := k.conn.Commit(ctx, &k.batch, k.gen); err != nil {
		return stats, err
	}
	if k.gen++; k.gen == 0 { // as the kernel does (nf_tables_commit in nf_tables_api.c)
		k.gen = 1
	}
	if k.batch.Size() > keepBatch {
		k.batch = nfnl.Batch{}
	}
	return stats, nil
}

// keepBatch is the size up to which the memory of a batch is kept for the next.
const keepBatch = 1 << 20

// failed wraps an error after which the kernel must be observed again. EBUSY says that a rule of somebody else leads to a chain that was to
// go.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	if errors.Is(err, nfnl.ErrGenerationChanged) || errors.Is(err, nfnl.ErrDumpInterrupted) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("iptables: %s: %w: %w", doing, dataplane.ErrConflict, err)
	}
	return fmt.Errorf("iptables: %s: %w", doing, err)
}

// Cleanup removes the instance: its jumps, its chains, and base chains and tables that are left with nothing in them. Chains that somebody
// else's rules lead to stay, KUBE-MARK-MASQ with what is in it.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	r, gen, err := b.kernel.readAll(ctx)
	if err != nil {
		return dataplane.Stats{}, fmt.Errorf("iptables: cleanup: %w", err)
	}
	b.kernel.gen = gen
	if _, err := b.adopt(r); err != nil {
		return dataplane.Stats{}, err
	}
	p := b.plan(servicemodel.Diff(b.state.table, nil))
	p.sweep(r)
	stats, err := b.send(ctx, p)
	b.observed = false
	if err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	stats.Duration = time.Since(start)
	return stats, nil
}
