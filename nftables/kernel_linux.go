package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables: the only part of the package that has a socket.
type kernel struct {
	conn  *nfnl.Conn
	batch nfnl.Batch // what is being committed
	req   nfnl.Batch // requests that read
	// gen is the generation of the ruleset that was last looked at or made.
	gen uint32
}

func (k *kernel) open(cfg *Config) error {
	var c nfnl.Config
	if cfg != nil {
		c.NetNS = cfg.NetNS
	}
	conn, err := nfnl.Dial(&c)
	k.conn = conn
	return err
}

// Close closes the socket and leaves the kernel as it is.
func (b *Backend) Close() error { return b.kernel.conn.Close() }

// observeTries bounds how often a reading is begun again since somebody committed meanwhile.
const observeTries = 8

// Observe reads both tables.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation, error) {
	b.observed = false
	var err error
	for try := range observeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(time.Duration(try*try) * 5 * time.Millisecond):
			}
		}
		var o [2]*observed
		if o, err = b.kernel.observe(ctx, b.pl.table); err == nil {
			return b.merge(o)
		}
		if !errors.Is(err, nfnl.ErrDumpInterrupted) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, errRehashed) {
			return nil, fmt.Errorf("nftables: observe: %w", err)
		}
	}
	return nil, fmt.Errorf("nftables: observe: tried %d times: %w: %w", observeTries, dataplane.ErrConflict, err)
}

// observe reads both tables once. It fails with one of the errors that Observe tries again for if something moved meanwhile.
func (k *kernel) observe(ctx context.Context, table string) (o [2]*observed, err error) {
	before, err := k.conn.GenID(ctx)
	if err != nil {
		return o, err
	}
	for i, f := range nftwire.Families {
		raw, err := k.readTable(ctx, f, table, true)
		if err != nil {
			return o, err
		}
		if o[i], err = read(f, raw); err != nil {
			return o, err
		}
	}
	after, err := k.conn.GenID(ctx)
	if err == nil && before.ID != after.ID {
		err = nfnl.ErrDumpInterrupted
	}
	k.gen = after.ID
	return o, err
}

// Integrity compares the ruleset's generation with the one known. If somebody committed, it looks whether tables, chains, rules and sets are still ours; of elements it
// says nothing.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	gen, err := b.kernel.conn.GenID(ctx)
	if err != nil {
		return dataplane.Broken, fmt.Errorf("nftables: integrity: %w", err)
	}
	if gen.ID == b.kernel.gen {
		return dataplane.Intact, nil
	}
	for i, f := range nftwire.Families {
		raw, err := b.kernel.readTable(ctx, f, b.pl.table, false)
		if errors.Is(err, nfnl.ErrDumpInterrupted) || errors.Is(err, unix.ENOENT) {
			return dataplane.Broken, nil
		}
		if err != nil {
			return dataplane.Broken, fmt.Errorf("nftables: integrity: %w", err)
		}
		sk, _ := readSkeleton(f, raw, b.rules)
		if sk.exists != b.pl.have[i].exists || sk.broken || sk.stale || !sk.shape.equal(&b.pl.have[i].shape) {
			return dataplane.Broken, nil
		}
	}
	b.kernel.gen = gen.ID
	return dataplane.Touched, nil
}

// Commit writes a change set in one transaction.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p, err := b.pl.plan(c)
	if err != nil {
		return dataplane.Stats{}, err
	}
	forget := newForgetter(p, c.New)
	if err := b.forgetClients(ctx, p, forget); err != nil {
		return dataplane.Stats{}, b.failed("forget clients", err)
	}
	stats, err := b.send(ctx, p)
	if err != nil {
		return dataplane.Stats{}, b.failed("commit", err)
	}
	b.committed(p, c)
	if err := b.sweep(ctx, p, forget, &stats); err != nil {
		return stats, b.failed("forget clients", err)
	}
	stats.Duration = time.Since(start)
	b.log.Debug("committed", "backend", Name, "table", b.pl.table, "messages", stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// send commits a plan.
func (b *Backend) send(ctx context.Context, p *plan) (dataplane.Stats, error) {
	k := &b.kernel
	k.batch.Reset()
	p.encode(&k.batch)
	stats := dataplane.Stats{Messages: k.batch.Len(), Elements: p.elements()}
	if stats.Messages == 0 {
		return stats, nil
	}
	stats.Bytes = k.batch.Size()
	if err := k.conn.Commit(ctx, &k.batch, k.gen); err != nil {
		return stats, err
	}
	k.gen = nfnl.NextGenID(k.gen)
	return stats, nil
}

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	b.crowded = b.crowded || errors.Is(err, unix.ENFILE)
	if errors.Is(err, nfnl.ErrGenerationChanged) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("nftables: %s: %w: %w", doing, dataplane.ErrConflict, err)
	}
	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// Cleanup deletes both tables.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	b.observed = false
	k := &b.kernel
	k.batch.Reset()
	for _, f := range nftwire.Families {
		there, err := k.tableExists(ctx, f, b.pl.table)
		if err != nil {
			return dataplane.Stats{}, fmt.Errorf("nftables: cleanup: %w", err)
		}
		if there {
			nftwire.NewEncoder(&k.batch, f, b.pl.table).DeleteTable()
		}
	}
	stats := dataplane.Stats{Messages: k.batch.Len()}
	if stats.Messages > 0 {
		stats.Bytes = k.batch.Size()
		if err := k.conn.Commit(ctx, &k.batch, 0); err != nil {
			return dataplane.Stats{}, b.failed("cleanup", err)
		}
	}
	stats.Duration = time.Since(start)
	return stats, nil
}
