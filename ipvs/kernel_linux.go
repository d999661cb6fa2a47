package ipvs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to the kernel. No other part of the package has sockets.
type kernel struct {
	*threadns.Turn // makes the backend a [backends.Locker]

	table    string // the name of the companion tables
	instance uint32
	mark     uint32         // see Config
	vs       *ipvsnl.Client // IPVS
	nf       *rawnl.Conn    // nf_tables
	// gen is the generation of the ruleset at which the companion was last known to be unchanged.
	gen        uint32
	references references // to the module of IPVS
	outlines   outlines   // of the virtual servers
	ns         *threadns.NS
	// Addresses, links, routes and rules.
	links    *rtnetlink.Conn
	changes  rtnetlink.Addresses // and links
	tunables sysctls.Owner
	values   values
	others   others
	modules  string // the folder with a folder for each loaded module
	takeOver bool   // see Config
	device   string // the configured device
	kind     string // kind of its link; empty: dummy. Tests use kinds that more kernels have.
	ifindex  int    // of the device; 0: it does not exist
}

// open opens the sockets in the network namespace of the configuration.
func (k *kernel) open(c *Config) error {
	ns, err := threadns.Open(c.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // nothing was written
	at := *c
	at.NetNS = ns.NetNS()
	err = k.dial(at.NetNS)

	// any process may look up the family; its timeouts show whether more is permitted
	if err == nil {
		_, err = k.vs.Timeouts(context.Background())
	}
	if err == nil {
		err = k.openNetwork(&at)
	}
	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) dial(at netns.Namespace) (err error) {
	k.vs, err = ipvsnl.Dial(context.Background(), &rawnl.Config{NetNS: at})
	if errors.Is(err, ipvsnl.ErrNotSupported) {
		return noModule("ip_vs", err)
	}
	return err
}

// openNetwork opens all sockets except the one to IPVS.
func (k *kernel) openNetwork(c *Config) (err error) {
	k.table, k.instance, k.device = c.Table, instanceFlag(c.Table), c.Device
	k.mark = c.Mark
	k.takeOver = c.TakeOver
	k.modules, k.references.file = modulesFolder, referencesFile
	k.kind = cmp.Or(k.kind, "dummy")
	if k.ns, err = threadns.Open(c.NetNS); err != nil {
		return err
	}
	k.openTunables(c)
	at := k.ns.NetNS()
	var errs [5]error
	k.Turn, errs[0] = threadns.OpenTurn(at)
	k.links, errs[1] = rtnetlink.Open(k.ns)
	k.nf, errs[2] = rawnl.Dial(&rawnl.Config{NetNS: at})
	errs[3] = k.changes.Open(k.ns)
	k.outlines, errs[4] = openOutlines(k.ns)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	return k.findDevice(&addresses{})
}

func (k *kernel) close() error {
	k.links.Close()
	k.changes.Close()
	k.outlines.close()
	k.values.Close()
	return errors.Join(k.vs.Close(), k.nf.Close(), k.Turn.Close(), k.ns.Close())
}

// Close closes the sockets and leaves the kernel as it is.
func (b *backend) Close() error { return b.kernel.close() }

// check lets the kernel check a transaction without committing it.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error { return k.nf.Check(ctx, b) }

// Observe reads the companion tables, the virtual servers of the instance, addresses, sysctls and
// timeouts. Other programs' commits to nf_tables do not matter. If another writer of the instance
// commits during the reading, that is a conflict.
func (b *backend) Observe(ctx context.Context, _ *servicemodel.Table) (*backends.Observation,
	error) {
	b.observed = false
	b.kernel.outlines.forget()
	o, drift, err := b.kernel.read(ctx, b.pl.tunables, b.pl.have.tunables)
	if interrupted(err) {
		err = fmt.Errorf("%w: %w", kernelerr.ErrConflict, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: observe: %w", err)
	}
	if err := b.warn(ctx, &o); err != nil {
		return nil, fmt.Errorf("ipvs: observe: %w", err)
	}
	if !o.addresses.equal(&b.pl.have.addresses) {
		clear(b.pl.unusable)
	}
	maps.DeleteFunc(b.pl.lacking, func(scheduler string, _ bool) bool {
		_, err := os.Stat(b.kernel.modules + "/ip_vs_" + scheduler)
		return err == nil
	})

	obs, err := b.pl.adopt(o, drift)
	if err != nil {
		return nil, fmt.Errorf("ipvs: what the kernel holds: %w", err)
	}
	b.draining = b.draining.readBack(&b.pl.have, time.Now())
	b.observed = true
	return obs, nil
}

// warn logs other programs' uses of the instance's marks, whenever they change.
func (b *backend) warn(ctx context.Context, o *observed) error {
	rivals, err := b.kernel.readRivals(o)
	if err == nil && !slices.Equal(rivals, b.rivals) {
		b.rivals = rivals
		for _, r := range rivals {
			b.cfg.Logger.WarnContext(ctx, "another program uses the packet marks of this instance",
				logkey.Backend, Name, logkey.Instance, b.cfg.Table, logkey.Problem, r)
		}
	}

	return err
}

// Commit writes a change set in the order that the package documentation describes: restrictions
// before permissions, and new objects before removals. If it fails or is killed, each virtual
// server is in the old state, in the new state, or in between: new objects exist, and old objects
// are not yet removed. If a transaction of the companion is too large for the socket, as in an
// unprivileged user namespace, Commit writes service ports in parts, one after the other.
func (b *backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	if !b.observed {
		return backends.Stats{}, errNotObserved
	}
	if err := b.pl.foreignTable(); err != nil {
		return backends.Stats{}, b.failed("commit", err)
	}
	if c.New.Rules().MasqueradeMark == 0 {
		return b.remove(ctx)
	}
	stats, err := b.commitPart(ctx, c)
	if errors.Is(err, rawnl.ErrBatchTooLarge) {
		stats, err = rendering.CommitInParts(ctx, c, err, b.commitPart)
	}
	if errors.Is(err, rawnl.ErrBatchTooLarge) { // a single service
		err = b.failed("commit", err)
	}
	if err != nil {
		return backends.Stats{}, err
	}
	stats.Duration = time.Since(start)
	b.cfg.Logger.DebugContext(ctx, "committed", logkey.Backend, Name, logkey.Instance,
		b.cfg.Table, logkey.Messages, stats.Messages, logkey.Bytes, stats.Bytes,
		logkey.Duration, stats.Duration)
	return stats, nil
}

// commitPart commits a change set that fits the socket to nf_tables. If the change set is larger,
// it does not start.
func (b *backend) commitPart(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats,
	error) {
	p := b.pl.plan(c)
	for s := range p.stages {
		limit := b.kernel.nf.MaxBatch()
		if size := p.batch(s).Size(); size > limit {
			return backends.Stats{}, &rawnl.TooLargeError{Size: size, Limit: limit}
		}
	}

	stats := p.Stats()
	if err := b.run(ctx, b.steps(p)); err != nil {
		return backends.Stats{}, err
	}
	b.committed(p, b.kernel.ifindex)
	b.kernel.outlines.forget()
	return stats, nil
}

// Settle deletes the destinations that have drained or reached the drain limit. Like Commit, it is
// a writer.
func (b *backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || len(b.draining) == 0 {
		return 0, nil
	}
	var ops []ipvsnl.Op
	var drained []backends.Drained
	for _, k := range b.draining.servers(&b.pl.have) {
		dests, err := b.kernel.vs.Destinations(ctx, k)
		if err != nil {
			return 0, b.failed("drain", err)
		}
		del, events := b.draining.drained(k, b.pl.have.frontendOf(k), dests,
			b.cfg.DrainLimit, time.Now())
		ops, drained = append(ops, del...), append(drained, events...)
	}

	// A check that finds no drained destination writes nothing, not even the version.
	if len(ops) > 0 && b.pl.have.companion.version.exists {
		p := b.pl.newPlan()
		p.down = ops
		b.pl.planVersion(p)
		if err := b.run(ctx, b.steps(p)); err != nil {
			return 0, err
		}
		for _, o := range ops {
			key := drainKey{o.Service.ServiceKey, o.Destination.DestinationKey}
			delete(b.pl.have.servers[key.svc].dests, key.dest)
			delete(b.draining, key)
		}

		b.pl.have.companion.version = p.versions[stageEnd]
		for _, ev := range drained {
			backends.Notify(ctx, ev)
		}
		b.kernel.outlines.forget()
	}

	if len(b.draining) == 0 {
		return 0, nil
	}
	return drainLook, nil
}

// drainLook is the time between two checks of draining destinations.
const drainLook = 2 * time.Second

// Cleanup removes the virtual servers and companion tables of the instance, its routes and rules,
// its device and addresses. It restores tunables unless another program relies on them, as the
// package documentation describes. The companion tables are removed last, because they restrict the
// objects that still exist, and have the earlier values of tunables.
func (b *backend) Cleanup(ctx context.Context) (backends.Stats, error) {
	if _, err := b.Observe(ctx, nil); err != nil {
		return backends.Stats{}, err
	}
	if b.pl.foreignTable() != nil {
		return backends.Stats{}, nil // there is no instance
	}
	return b.remove(ctx)
}

// remove removes the instance, unless another writer has committed since the observation.
func (b *backend) remove(ctx context.Context) (backends.Stats, error) {
	start, p := time.Now(), b.pl.planCleanup()
	stats := p.Stats()
	err := b.run(ctx, b.cleanupSteps(p))
	b.observed = false
	if err != nil {
		return backends.Stats{}, err
	}
	b.pl.have, b.draining = newObserved(), draining{}
	stats.Duration = time.Since(start)
	return stats, nil
}

// noModule says that the kernel lacks a module, or how to load it: before Linux 5.16, ip_vs does
// not declare its family, so a process without CAP_SYS_MODULE cannot make the kernel load it.
func noModule(module string, err error) error {
	if installed(module) {
		return fmt.Errorf(
			"%w %s: it is installed but not loaded, and this process cannot have it loaded: load "+
				"module %s (modprobe %s): %w",
			kernelerr.ErrMissingModule, module, module, module, err)
	}

	return fmt.Errorf("%w %s: this kernel has none, or did not load it (modprobe %s on the host)",
		kernelerr.ErrMissingModule, module, module) // the cause says no more
}

// installed reports whether the running kernel has a module's file, as far as this process can see.
// In a container the files are often not visible.
func installed(module string) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	list, err := os.ReadFile("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) +
		"/modules.dep")
	return err == nil && bytes.Contains(list, []byte("/"+module+".ko"))
}
