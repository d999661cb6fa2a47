package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/internal/wait"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables. No other part of the package has a socket.
type kernel struct {
	*threadns.Turn // makes the backend a [dataplane.Locker]

	conn  *rawnl.Conn
	batch rawnl.Batch // the batch that is committed
	req   rawnl.Batch // read requests
	// gen is the generation of the ruleset after the last check or commit.
	gen uint32
	// localnet is the sysctl route_localnet.
	localnet rendering.RouteLocalnet
	// askers ask for elements, at the same time.
	askers [2]*asker
	// dumpable bounds the size of a set that a reading dumps to find unwanted elements. It holds
	// for sets that grow with the endpoints, if the reading knows the wanted table.
	dumpable int
	place    place
	// takeOver says that tables without the instance's marks belong to the instance.
	takeOver bool
	// chunk is how many questions about unwanted elements are sent at once.
	chunk int
	// room is how many bytes of elements fit into one transaction.
	room int
}

// A dump of this many elements takes some 20 ms. Four times as many take ten times as long.
const dumpable = 1 << 14

func (k *kernel) open(cfg *Config) error {
	if cfg == nil {
		cfg = &Config{}
	}
	fd, release, err := threadns.At(cfg.NetNS, cfg.NetNSPath)
	if err != nil {
		return err
	}
	defer release()
	c := rawnl.Config{NetNS: fd}
	var second *rawnl.Conn
	var errs [4]error
	k.conn, errs[0] = rawnl.Dial(&c)
	second, errs[1] = rawnl.Dial(&c)
	k.Turn, errs[2] = threadns.OpenTurn(fd)
	k.localnet.NS, errs[3] = threadns.Open(fd)
	k.takeOver = cfg.TakeOver
	k.askers, k.dumpable, k.chunk = [2]*asker{{conn: k.conn}, {conn: second}}, dumpable, chunk
	if err = errors.Join(errs[:]...); err == nil {
		k.room = k.conn.MaxBatch() / 2
		// Without CAP_NET_ADMIN the kernel refuses every request to nf_tables, and without
		// nf_tables nfnetlink refuses it as invalid.
		switch _, e := k.conn.GenID(context.Background()); {
		case errors.Is(e, unix.EPERM):
			err = e
		case errors.Is(e, unix.EINVAL):
			err = fmt.Errorf("%w nf_tables: %w", dataplane.ErrMissingModule, e)
		}
	}
	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) close() error {
	return errors.Join(k.Turn.Close(), k.localnet.NS.Close(),
		k.conn.Close(), k.askers[1].conn.Close())
}

// Close closes the sockets and leaves the kernel as it is.
func (b *backend) Close() error { return b.kernel.close() }

// Observe reads both tables. It asks for the elements that are wanted, in time linear in their
// number. A dump takes quadratic time. Linux 6.16 and newer tell how many elements a set has, and
// so whether there are other elements. An observation is Unread if only a dump of a large map would
// find them. On older kernels it is always Unread if a map is large.
func (b *backend) Observe(ctx context.Context, want *servicemodel.Table) (*dataplane.Observation,
	error) {
	b.observed = false
	k := &b.kernel
	s, err := k.readTables(ctx, b.pl.table, b.crowded)
	if err != nil {
		return nil, readError("observe", err)
	}
	for _, r := range s.tables {
		if !r.stands() {
			continue
		}
		if err := k.readElements(ctx, r, want); err != nil {
			return nil, readError("observe", err)
		}
	}
	if err := k.requireVersion(ctx, b.pl.table, s.version); err != nil {
		return nil, readError("observe", err)
	}
	o, err := b.merge(s, want)
	if err != nil {
		return nil, err
	}
	return o, b.lookAtLocalnet(o)
}

// readError wraps an error of a reading. It is a conflict if others changed what was being read.
func readError(doing string, err error) error {
	if errors.Is(err, rawnl.ErrDumpInterrupted) || errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
	}
	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// Integrity tells whether the instance is as the last Observe or Commit left it. If no program has
// committed to nf_tables since, the instance is intact. Otherwise the version tells whether another
// writer of the instance committed. A check of the tables then finds edits by hand: it compares
// chains, rules and sets and, on Linux 6.16 and newer, the numbers of elements. Checks are
// rationed, so that a neighbour that commits without end costs little. A check does not see that
// one element replaced another, so its best result is Touched.
func (b *backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed || b.pl.owning != nil {
		return dataplane.Broken, nil
	}
	if rules := &b.pl.rules; rules.LocalhostNodePorts && rendering.WantsRouteLocalnet(rules) {
		if on, err := b.kernel.localnet.Get(); err != nil || !on {
			return dataplane.Broken, err
		}
	}
	gen, err := b.kernel.conn.GenID(ctx)
	if err == nil && gen.ID == b.kernel.gen {
		return dataplane.Intact, nil
	}
	i := dataplane.Broken
	if err == nil {
		i, err = b.look(ctx)
	}
	if err != nil {
		return dataplane.Broken, fmt.Errorf("nftables: integrity: %w", err)
	}
	if i == dataplane.Intact {
		b.kernel.gen = gen.ID
		i = dataplane.Touched
	}
	return i, nil
}

// look finds out what happened to the instance while other programs committed.
func (b *backend) look(ctx context.Context) (dataplane.Integrity, error) {
	err := b.kernel.requireVersion(ctx, b.pl.table, b.pl.version)
	if errors.Is(err, rawnl.ErrDumpInterrupted) {
		return dataplane.Broken, nil
	}
	if err != nil {
		return dataplane.Broken, err
	}
	start := time.Now()
	if !b.looks.Allow(start) {
		return dataplane.Touched, nil
	}
	i, err := b.inspect(ctx)
	if i != dataplane.Broken { // a check that found something was worth its time
		b.looks.Spend(time.Since(start))
	}
	return i, err
}

// inspect compares the tables with what they should be, as far as that can be told without reading
// elements that stand for services.
func (b *backend) inspect(ctx context.Context) (dataplane.Integrity, error) {
	result := dataplane.Intact
	for i, f := range nft.Families {
		r, err := b.kernel.readTable(ctx, f, b.pl.table)
		switch {
		case errors.Is(err, unix.ENOENT):
			return dataplane.Broken, nil
		case errors.Is(err, rawnl.ErrDumpInterrupted):
			return dataplane.Touched, nil
		case err != nil:
			return dataplane.Broken, err
		case r.exists && !r.rules.Equal(b.pl.rules):
			return dataplane.Broken, nil
		}
		result = max(result, b.pl.tables[i].compare(&r.skeleton))
	}
	return result, nil
}

// Commit writes a change set in one transaction. The same transaction marks in the kernel the work
// that is left to Settle. If a service gets a scheduler that the rules do not know yet, a
// transaction before that one brings the rules. If the socket cannot send so much at once, as in an
// unprivileged user namespace, Commit needs several transactions: new service ports come first,
// then changed ones, and removed ones last, each of them whole. Tables that must be made anew then
// hold only a part of the service ports until the last transaction.
//
// If the instance is new and large, Commit makes the tables in many transactions, so that other
// programs can commit in between. Packets meet the tables after the last one.
func (b *backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	c = b.anew(c)
	stats, err := b.commitPart(ctx, c)
	if errors.Is(err, rawnl.ErrBatchTooLarge) {
		stats, err = rendering.CommitInParts(ctx, c, err, b.commitPart)
	}
	if err != nil {
		return dataplane.Stats{}, b.failed("commit", err)
	}
	stats.Duration = time.Since(start)
	b.log.Debug("committed", logkey.Backend, Name, logkey.Instance, b.pl.table, logkey.Messages,
		stats.Messages, logkey.Bytes, stats.Bytes, logkey.Duration, stats.Duration)
	return stats, nil
}

// commitPart writes a change set in one transaction.
func (b *backend) commitPart(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats,
	error) {
	if b.pl.version.number == 0 && b.pl.standing() != nil {
		if err := b.giveVersion(ctx); err != nil {
			return dataplane.Stats{}, err
		}
	}
	if b.pl.owning != nil && b.pl.removes(c) {
		return b.commitRemoval(ctx, c.New.Len())
	}
	rare := b.pl.rules.LocalhostNodePorts || c.Rules != nil ||
		slices.ContainsFunc(c.Pools, func(pc servicemodel.Change[servicemodel.Pool]) bool {
			return pc.Old != nil && pc.New != nil && pc.Old.Scheduler != pc.New.Scheduler
		})
	var before dataplane.Stats
	if rare {
		var err error
		if before, err = b.prepare(ctx, c); err != nil {
			return before, err
		}
	}
	p := b.pl.plan(c)
	if err := b.wake(ctx); err != nil {
		return before, err
	}
	stats, err := b.send(ctx, p)
	if err != nil {
		return stats, b.notRenewed(p, err)
	}
	b.committed(p)
	if rare {
		err = b.afterLocalnet()
	}
	return stats.Plus(before), err
}

// wake makes dormant tables that are written anew take effect. A transaction that does this cannot
// add base chains.
func (b *backend) wake(ctx context.Context) error {
	k := &b.kernel
	k.batch.Reset()
	for _, t := range b.pl.tables {
		if t.held != nil && t.held.dormant {
			nft.NewEncoder(&k.batch, t.f, b.pl.table).EnsureTable()
		}
	}
	_, err := k.commit(ctx)
	return err
}

// notRenewed notes that the kernel refused to write a broken table anew, for another reason than a
// commit of others. The next commit deletes the table first.
func (b *backend) notRenewed(p *plan, err error) error {
	var errno unix.Errno
	if !slices.ContainsFunc(p.tables, func(t *tablePlan) bool { return t.renew }) ||
		!errors.As(err, &errno) || errno == unix.EEXIST || errno == unix.ENOENT {
		return err
	}
	b.pl.refused = true
	return fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
}

// prepare does what rare change sets need before their transaction.
func (b *backend) prepare(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	if err := b.beforeLocalnet(ctx, c); err != nil {
		return dataplane.Stats{}, err
	}
	p := b.pl.planAhead(c)
	if p == nil {
		return dataplane.Stats{}, nil
	}
	stats, err := b.send(ctx, p)
	if err == nil {
		b.committed(p)
	}
	return stats, err
}

// send commits a plan.
func (b *backend) send(ctx context.Context, p *plan) (dataplane.Stats, error) {
	k := &b.kernel
	elements, size := p.load()
	if size > min(oneStep, k.room) && b.inSteps(p) {
		return b.sendInSteps(ctx, p)
	}
	k.batch.Reset()
	p.encode(&k.batch)
	stats, err := k.commit(ctx)
	stats.Elements = elements
	return stats, err
}

// commit sends the batch as one transaction, if there is anything in it.
func (k *kernel) commit(ctx context.Context) (dataplane.Stats, error) {
	if k.batch.Len() == 0 {
		return dataplane.Stats{}, nil
	}
	stats := dataplane.Stats{Messages: k.batch.Len(), Bytes: k.batch.Size()}
	err := k.conn.Commit(ctx, &k.batch, 0)
	if err != nil {
		return stats, err
	}
	// After a foreign commit the kernel's generation is another one, and the next Integrity does a
	// check.
	if k.gen = rawnl.NextGenID(k.gen); k.batch.Size() > keptBatch {
		k.batch = rawnl.Batch{}
	}
	return stats, nil
}

// failed wraps an error after which the kernel must be observed again.
func (b *backend) failed(doing string, err error) error {
	b.observed = false
	b.crowded = b.crowded || errors.Is(err, unix.ENFILE)
	if b.pl.owning != nil {
		// unless others committed meanwhile, the tables have more or less than was read
		b.doubted = b.pl.version
	}
	if lacks := nft.Missing(err, &b.kernel.batch); lacks != nil {
		return fmt.Errorf("nftables: %s: %w", doing, lacks)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, rawnl.ErrGenerationChanged) || errors.Is(err, rawnl.ErrDumpInterrupted) {
		return fmt.Errorf("nftables: %s: %w: %w", doing, dataplane.ErrConflict, err)
	}
	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// Cleanup deletes both tables. It leaves alone tables that have none of the instance's marks,
// unless [Config.TakeOver] is set. The chains that drop and reject packets go first, in a
// transaction of their own.
func (b *backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	b.observed = false
	if _, err := b.cleanupLocalnet(ctx); err != nil {
		return dataplane.Stats{}, fmt.Errorf("nftables: cleanup: %w", err)
	}
	stats, err := b.kernel.deleteTables(ctx, b.pl.table)
	if err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	b.pl.rules, b.pl.localnet = servicemodel.Rules{}, localnet{}
	stats.Duration = time.Since(start)
	return stats, nil
}

// deleteTables deletes both tables, and first the base chains that drop and reject. When the kernel
// deletes a table, it empties the maps at once, and takes the chains from their hooks one by one,
// for milliseconds. Packets that are not translated any more would be dropped in that time, even if
// another backend serves them.
func (k *kernel) deleteTables(ctx context.Context, table string) (dataplane.Stats, error) {
	k.batch.Reset()
	var tables rawnl.Batch
	for _, f := range nft.Families {
		r, err := k.readTable(ctx, f, table)
		if err != nil {
			return dataplane.Stats{}, err
		}
		if !r.exists || k.requireOurs(r) != nil {
			continue
		}
		for _, name := range filterChains {
			if _, exists := r.chains[name]; exists {
				nft.NewEncoder(&k.batch, f, table).DeleteChain(name)
			}
		}
		nft.NewEncoder(&tables, f, table).DeleteTable()
	}
	stats, err := k.commit(ctx)
	if err != nil {
		return stats, err
	}
	k.batch = tables
	last, err := k.commit(ctx)
	return stats.Plus(last), err
}

// check asks the kernel to check a transaction without committing it.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error { return k.conn.Check(ctx, b) }

// Settle forgets the clients of endpoints that earlier commits removed. After it has returned 0, no
// new connection reaches such an endpoint, and no connection can bring it back. It costs nothing if
// no frontend with affinity lost an endpoint. It also ends a sweep that a stopped process had
// begun.
//
// Settle deletes the entries that must go until there are none. An entry can come back: a packet
// that followed the entry before its deletion is learnt after it. A packet goes through the rules
// in one RCU read-side section, so Settle waits for a grace period before each reading of all maps.
// Only
// existing entries lead to new ones. So the sweep of a commit ends when a reading finds none of its
// entries, and no packet was under way that began before the commit and the last deletion. One
// reading serves all commits before it.
func (b *backend) Settle(ctx context.Context) (time.Duration, error) {
	if !b.observed || !b.pl.version.unswept {
		return 0, nil
	}
	left, err := b.sweepTables(ctx)
	// Another writer removed the maps. If its tables need a sweep, they have a mark of their own.
	if errors.Is(err, unix.ENOENT) {
		b.observed = false
		return 0, nil
	}
	if err != nil {
		b.sweep.tries = 0
		return 0, b.failed("forget clients", err)
	}
	switch p := wait.PacketsOf(ctx); {
	case left && p.More:
		return wait.Pause, nil
	case left:
		return wait.Grace, nil
	}
	if err := b.swept(ctx); err != nil {
		return 0, b.failed("note that clients were forgotten", err)
	}
	return 0, nil
}

// Witness waits until another program changes the tables, and returns that program. It makes
// the backend a [dataplane.Witness].
func (b *backend) Witness(ctx context.Context) (dataplane.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.localnet.NS, k.conn, func(c nft.Changed) bool {
		return c.Table == b.pl.table
	})
	if err != nil {
		return dataplane.Program{}, fmt.Errorf("nftables: witness: %w", err)
	}
	return dataplane.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
