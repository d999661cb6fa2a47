package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnl"
	"github.com/kernlb/kernlb/internal/rtnotice"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to the kernel: the only part of the package that has sockets.
type kernel struct {
	table    string // the name of the companion tables
	instance uint32
	vs       *ipvsnl.Client // IPVS
	nf       *rawnl.Conn    // nf_tables
	batch    rawnl.Batch    // what is being committed
	// gen is the generation of the ruleset when the companion was known to be what it is known as.
	gen        uint32
	references references // to the module of IPVS
	outlines   outlines   // of its virtual servers
	ns         *threadns.NS
	turn       *threadns.Turn
	// Addresses, links, routes and rules.
	links    *rtnl.Conn
	changes  rtnotice.Addresses // and links
	sysctls  sysctlFiles
	takeOver bool   // see Config
	device   string // the configured one
	kind     string // of its link; empty: dummy, but tests have what more kernels know
	ifindex  int    // of the device; 0: it is not there
}

// open opens the sockets in the network namespace of the configuration.
func (k *kernel) open(c *Config) error {
	fd, release, err := threadns.At(c.NetNS, c.NetNSPath)
	if err != nil {
		return err
	}
	defer release()
	at := *c
	at.NetNS = fd
	k.vs, err = ipvsnl.Dial(context.Background(), &rawnl.Config{NetNS: fd})
	if errors.Is(err, ipvsnl.ErrNotSupported) {
		return noModule("ip_vs", err)
	}
	if err == nil { // anybody may look for the family; its version shows whether more is permitted
		_, err = k.vs.Info(context.Background())
	}
	if err == nil {
		err = k.openNetwork(&at)
	}
	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

// openNetwork opens all sockets but that of IPVS.
func (k *kernel) openNetwork(c *Config) (err error) {
	k.table, k.instance, k.device = c.Table, instanceFlag(c.Table), c.Device
	k.takeOver = c.TakeOver
	k.sysctls, k.references.file = sysctlFiles{}, referencesFile
	k.kind = cmp.Or(k.kind, "dummy")
	if k.ns, err = threadns.Open(c.NetNS); err != nil {
		return err
	}
	fd := k.ns.FD()
	var errs [5]error
	k.turn, errs[0] = threadns.OpenTurn(fd)
	k.links, errs[1] = rtnl.Open(k.ns)
	k.nf, errs[2] = rawnl.Dial(&rawnl.Config{NetNS: fd})
	errs[3] = k.changes.Open(k.ns)
	k.outlines, errs[4] = openOutlines(k.ns)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	return k.findDevice(&addresses{})
}

// close closes what was opened.
func (k *kernel) close() error {
	k.links.Close()
	k.changes.Close()
	k.outlines.close()
	k.sysctls.close()
	return errors.Join(k.vs.Close(), k.nf.Close(), k.turn.Close(), k.ns.Close())
}

// Close closes the sockets and leaves the kernel as it is.
func (b *Backend) Close() error { return b.kernel.close() }

// patience is how long a writer waits for its turn.
const patience = 10 * time.Second

// Lock waits for the turn of this writer among all that work in the network namespace, those of
// other instances too, for 10 seconds at most. The error is that of the context.
func (b *Backend) Lock(ctx context.Context) (unlock func(), err error) {
	return b.kernel.turn.Take(ctx, patience)
}

// check has the kernel judge a transaction that does not take place.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error { return k.nf.Check(ctx, b) }

// Observe reads the companion tables, the virtual servers of the instance, addresses, sysctls and
// timeouts. What others commit to nf_tables meanwhile does not matter; if another writer of the
// instance does, that is a conflict.
func (b *Backend) Observe(ctx context.Context, want *servicemodel.Table) (*dataplane.Observation,
	error) {
	b.observed = false
	b.kernel.outlines.forget()
	o, drift, err := b.kernel.read(ctx, b.pl.tunables, b.pl.have.companion.tunables)
	if interrupted(err) {
		err = fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: observe: %w", err)
	}
	obs, err := b.pl.adopt(o, drift, want)
	if err != nil {
		return nil, fmt.Errorf("ipvs: what the kernel holds: %w", err)
	}
	b.draining = b.draining.readBack(&b.pl.have, time.Now())
	b.observed = true
	return obs, nil
}

// Commit writes a change set, in the order that the package documentation gives: what restricts
// before what opens, what is new before what is old. If it fails or is killed, each virtual server
// is as it was, as it is wanted, or on the way between: what is new is there, and what is old not
// gone yet.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	p := b.pl.plan(c)
	stats := p.Stats()
	if err := b.run(ctx, b.steps(p)); err != nil {
		return dataplane.Stats{}, err
	}
	b.committed(p, b.kernel.ifindex)
	b.kernel.outlines.forget()
	stats.Duration = time.Since(start)
	b.cfg.Logger.Debug("committed", "backend", Name, "table", b.cfg.Table, "messages",
		stats.Messages, "bytes", stats.Bytes, "duration", stats.Duration)
	return stats, nil
}

// Settle deletes the destinations that have drained or may no longer be waited for. It is a writer
// as Commit is.
func (b *Backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || len(b.draining) == 0 {
		return 0, nil
	}
	ops, err := b.readDrained(ctx)
	if err != nil {
		return 0, b.failed("drain", err)
	}
	// A look that finds nothing drained writes nothing, the version included.
	if len(ops) > 0 && b.pl.have.companion.version.exists {
		p := b.pl.planDrained(ops)
		if err := b.run(ctx, b.steps(p)); err != nil {
			return 0, err
		}
		b.deleteDrained(p)
		b.kernel.outlines.forget()
	}
	if len(b.draining) == 0 {
		return 0, nil
	}
	return drainLook, nil
}

// drainLook is how long it takes until destinations that drain are looked at again.
const drainLook = 2 * time.Second

// readDrained asks for the destinations that drain, and returns the commands that delete those that
// have.
func (b *Backend) readDrained(ctx context.Context) (ops []op, err error) {
	for _, k := range b.draining.servers(&b.pl.have) {
		dests, err := b.kernel.vs.Destinations(ctx, k)
		if err != nil {
			return nil, err
		}
		ops = append(ops, b.draining.drained(k, dests, b.cfg.DrainLimit, time.Now())...)
	}
	return ops, nil
}

// Cleanup removes the virtual servers and companion tables of the instance, its routes and rules,
// its device and addresses, and restores tunables, as far as nobody else relies on them: the
// package documentation says when. The companion tables go last: they restrict what is still there,
// and know what tunables were.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	if _, err := b.Observe(ctx, nil); err != nil {
		return dataplane.Stats{}, err
	}
	p := b.pl.planCleanup()
	stats := p.Stats()
	err := b.run(ctx, b.cleanupSteps(p))
	b.observed = false
	if err != nil {
		return dataplane.Stats{}, err
	}
	b.pl.have, b.draining = newObserved(), draining{}
	stats.Duration = time.Since(start)
	return stats, nil
}
