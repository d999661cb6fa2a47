package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelprobe"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/parts"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables: the only part of the package that has a socket.
type kernel struct {
	conn  *rawnl.Conn
	batch rawnl.Batch // what is being committed
	req   rawnl.Batch // requests that read
	// gen is the generation of the ruleset that was last looked at or made.
	gen  uint32
	turn *threadns.Turn
	// localnet is the sysctl route_localnet.
	localnet loopback.Sysctl
	// askers ask for elements, at the same time.
	askers [2]*asker
	// dumpable is how many elements of a set that grows with the endpoints may be dumped to find
	// those that nobody asked for, by a reading that is given what is wanted.
	dumpable int
	// chunk is how many elements that are not wanted are asked for at once.
	chunk int
}

// dumpable elements are dumped in some 20 ms; four times as many take ten times as long.
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
	k.turn, errs[2] = threadns.OpenTurn(fd)
	k.localnet.NS, errs[3] = threadns.Open(fd)
	k.askers, k.dumpable, k.chunk = [2]*asker{{conn: k.conn}, {conn: second}}, dumpable, chunkAddrs
	if err = errors.Join(errs[:]...); err == nil {
		// Without CAP_NET_ADMIN the kernel refuses whatever is asked of nf_tables.
		if _, e := k.conn.GenID(context.Background()); errors.Is(e, unix.EPERM) {
			err = e
		}
	}
	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) close() error {
	return errors.Join(k.turn.Close(), k.localnet.NS.Close(),
		k.conn.Close(), k.askers[1].conn.Close())
}

// Close closes the sockets and leaves the kernel as it is.
func (b *Backend) Close() error { return b.kernel.close() }

// patience is how long other writers of the namespace are waited for.
const patience = 10 * time.Second

// Lock waits until no other writer of the network namespace has its turn, 10 seconds at most.
func (b *Backend) Lock(ctx context.Context) (unlock func(), err error) {
	return b.kernel.turn.Take(ctx, patience)
}

// Observe reads both tables. What is wanted it asks for, which takes time linear in the number of
// elements; a dump takes quadratic time. What else there is shows in the numbers of elements, which
// Linux 6.16 and newer tell. An observation is Unread where there are more endpoints than those
// found, of which only a dump of a large map would tell more; on older kernels it always is, with
// large maps.
func (b *Backend) Observe(ctx context.Context, want *servicemodel.Table) (*dataplane.Observation,
	error) {
	b.observed = false
	o, v, err := b.kernel.observe(ctx, b.pl.table, want)
	if err == nil {
		var obs *dataplane.Observation
		if obs, err = b.merge(o, v, want); err != nil {
			return nil, err
		}
		if err = b.lookAtLocalnet(obs); err == nil {
			return obs, nil
		}
		b.observed = false
	}
	if interrupted(err) {
		err = fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
	}
	return nil, fmt.Errorf("nftables: observe: %w", err)
}

// interrupted reports whether a reading failed since others changed what was being read.
func interrupted(err error) bool {
	return errors.Is(err, rawnl.ErrDumpInterrupted) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, errRehashed)
}

// observe reads both tables.
func (k *kernel) observe(ctx context.Context, table string, want *servicemodel.Table) (
	o [2]*observed, v version, err error) {
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return o, v, err
	}
	if v, err = k.readVersion(ctx, table); err != nil {
		return o, v, err
	}
	for i, f := range nft.Families {
		if o[i], err = k.observeTable(ctx, f, table, want); err != nil {
			return o, v, err
		}
	}
	k.gen = gen.ID
	return o, v, k.requireVersion(ctx, table, v)
}

// observeTable reads one table.
func (k *kernel) observeTable(ctx context.Context, f *nft.Family, table string,
	want *servicemodel.Table) (*observed, error) {
	raw, err := k.readTable(ctx, f, table)
	if err != nil {
		return nil, err
	}
	return k.observeElements(ctx, f, raw, want)
}

// observeElements reads the elements of a table, as far as they matter; raw is nil if there is
// none.
func (k *kernel) observeElements(ctx context.Context, f *nft.Family, raw *rawTable,
	want *servicemodel.Table) (*observed, error) {
	if raw != nil && raw.has(setSettings) {
		err := k.dumpSet(ctx, f, raw, setSettings, func(e nft.Elem) {
			raw.add(setSettings, cloneElem(e))
		})
		if err != nil {
			return nil, err
		}
	}
	return read(f, raw, func(o *observed) error {
		s := newSift(f, raw, &o.shape, want)
		err := k.readWanted(ctx, s)
		o.part, o.unread = &part{s.gone, s.pools, s.addrs}, s.unread
		return err
	})
}

// Integrity tells whether the instance is as the last Observe or Commit left it. Where nobody
// committed to nf_tables since, it is. Otherwise the version tells whether somebody wrote to the
// instance as we do, and a look at the tables whether somebody did by hand: whether chains, rules
// and sets are ours and, on Linux 6.16 and newer, sets have as many elements as they should. Looks
// are rationed, so that a neighbour that commits without end costs little. Whether an element has
// become another one they do not tell, so that it is Touched.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed || b.pl.owning != nil {
		return dataplane.Broken, nil
	}
	if stands, err := b.localnetStands(); err != nil || !stands {
		return dataplane.Broken, err
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

// look tells what became of the instance while others committed.
func (b *Backend) look(ctx context.Context) (dataplane.Integrity, error) {
	if ours, err := b.kernel.hasVersion(ctx, b.pl.table, b.pl.version); err != nil || !ours {
		return dataplane.Broken, err
	}
	start := time.Now()
	if !b.looks.Allow(start) {
		return dataplane.Touched, nil
	}
	i, err := b.inspect(ctx)
	if i != dataplane.Broken { // a look that found something was worth its time
		b.looks.Spend(time.Since(start))
	}
	return i, err
}

// inspect compares the tables with what they should be, as far as that can be told without reading
// elements.
func (b *Backend) inspect(ctx context.Context) (dataplane.Integrity, error) {
	result := dataplane.Intact
	for i, f := range nft.Families {
		raw, err := b.kernel.readTable(ctx, f, b.pl.table)
		switch {
		case errors.Is(err, unix.ENOENT):
			return dataplane.Broken, nil
		case errors.Is(err, rawnl.ErrDumpInterrupted):
			return dataplane.Touched, nil
		case err != nil:
			return dataplane.Broken, err
		}
		sk, _ := readSkeleton(f, raw, b.rules)
		result = max(result, b.pl.have[i].compare(&sk))
	}
	return result, nil
}

// Commit writes a change set in one transaction. What is left to [Backend.Settle] is marked in the
// kernel by the same transaction. Where the socket cannot send so much at once, as in an
// unprivileged user namespace, service ports that are new come in several transactions, each of
// which leaves whole ones.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	stats, err := parts.Commit(c, func(c *servicemodel.ChangeSet) (dataplane.Stats, error) {
		return b.commitPart(ctx, c)
	})
	if err != nil {
		return dataplane.Stats{}, b.failed("commit", err)
	}
	stats.Duration = time.Since(start)
	b.log.Debug("committed", logkey.Backend, Name, logkey.Instance, b.pl.table, logkey.Messages,
		stats.Messages, logkey.Bytes, stats.Bytes, logkey.Duration, stats.Duration)
	return stats, nil
}

// commitPart writes a change set in one transaction.
func (b *Backend) commitPart(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats,
	error) {
	turnOn, err := b.beforeCommit(ctx, c.New.Rules())
	if err != nil {
		return dataplane.Stats{}, err
	}
	p := b.pl.plan(c)
	stats, err := b.send(ctx, p)
	if err != nil {
		return stats, err
	}
	b.committed(p, c)
	return stats, b.afterCommit(turnOn)
}

// send commits a plan.
func (b *Backend) send(ctx context.Context, p *plan) (dataplane.Stats, error) {
	k := &b.kernel
	k.batch.Reset()
	p.encode(&k.batch)
	stats, err := k.commit(ctx)
	stats.Elements = p.elements()
	return stats, err
}

// commit sends the batch as one transaction, if there is anything in it.
func (k *kernel) commit(ctx context.Context) (dataplane.Stats, error) {
	stats := dataplane.Stats{Messages: k.batch.Len(), Bytes: k.batch.Size()}
	if stats.Messages == 0 {
		return stats, nil
	}
	err := k.conn.Commit(ctx, &k.batch, 0)
	if k.batch.Size() > keptBatch {
		k.batch = rawnl.Batch{}
	}
	// if somebody else committed since we last looked, the generation is another, and we look
	if err == nil {
		k.gen = rawnl.NextGenID(k.gen)
	}
	return stats, err
}

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	b.crowded = b.crowded || errors.Is(err, unix.ENFILE)
	if b.pl.owning != nil {
		b.doubted = b.pl.version // unless others committed meanwhile, more is there or less
	}
	if lacks := kernelprobe.Missing(err, &b.kernel.batch); lacks != nil {
		return fmt.Errorf("nftables: %s: %w", doing, lacks)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("nftables: %s: %w: %w", doing, dataplane.ErrConflict, err)
	}
	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// Cleanup deletes both tables.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	b.observed = false
	k := &b.kernel
	if err := k.cleanupLocalnet(ctx, b.pl.table); err != nil {
		return dataplane.Stats{}, fmt.Errorf("nftables: cleanup: %w", err)
	}
	k.batch.Reset()
	for _, f := range nft.Families {
		there, err := k.tableExists(ctx, f, b.pl.table)
		if err != nil {
			return dataplane.Stats{}, fmt.Errorf("nftables: cleanup: %w", err)
		}
		if there {
			nft.NewEncoder(&k.batch, f, b.pl.table).DeleteTable()
		}
	}
	stats, err := k.commit(ctx)
	if err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	stats.Duration = time.Since(start)
	return stats, nil
}
