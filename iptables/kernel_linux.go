package iptables

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
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables: the only part of the package that has a socket.
type kernel struct {
	conn   *rawnl.Conn
	reader *reader
	batch  rawnl.Batch // what is being committed
	// gen is the generation of the ruleset up to which it is known that nobody changed anything
	// of ours.
	gen    uint32
	sysctl loopback.Sysctl
	turn   *threadns.Turn
	lacks  lacking
	looks  ration.Ration // at the skeleton and the uses
}

func (k *kernel) open(cfg *Config) error {
	if cfg == nil {
		cfg = &Config{}
	}
	fd, release, err := threadns.At(cfg.NetNS, cfg.NetNSPath)
	if err != nil {
		return err
	}
	defer release()
	var errs [3]error
	k.conn, errs[0] = rawnl.Dial(&rawnl.Config{NetNS: fd})
	k.sysctl.NS, errs[1] = threadns.Open(fd)
	k.turn, errs[2] = threadns.OpenTurn(fd)
	k.reader, k.looks = newReader(k.conn), ration.New(8, 20)
	if err = errors.Join(errs[:]...); err == nil {
		err = k.probe(context.Background())
	}
	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) close() error {
	return errors.Join(k.turn.Close(), k.sysctl.NS.Close(), k.conn.Close())
}

// Close closes the socket and leaves the kernel as it is.
func (b *Backend) Close() error { return b.kernel.close() }

// patience is how long a writer waits for its turn.
const patience = 10 * time.Second

// Lock waits for the turn of this writer among all that work in the network namespace, for 10
// seconds at most. The error is that of the context.
func (b *Backend) Lock(ctx context.Context) (unlock func(), err error) {
	return b.kernel.turn.Take(ctx, patience)
}

// Observe reads both tables of both families.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation,
	error) {
	o, _, err := b.observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("iptables: observe: %w", err)
	}
	return o, nil
}

func (b *Backend) observe(ctx context.Context) (o *dataplane.Observation, r *raw, err error) {
	b.observed = false
	r, gen, err := b.kernel.readAll(ctx, b.l)
	if err != nil {
		return nil, nil, err
	}
	b.kernel.gen = gen
	o, err = b.adopt(r)
	return o, r, err
}

// Integrity compares the ruleset's generation with the one known. If somebody committed, it asks
// for the version of the instance, which tells whether another writer did. If not, it looks for
// what people do by hand, at most every twentieth of the time: whether the fixed chains, our
// jumps among them, are as they should be, and whether there are as many chains and rules as
// there should be. Only a rule in a chain of a service that took the place of another is not
// seen by that, so that it is Touched. Where node ports answer at localhost, the sysctl counts,
// too.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	i, err := b.integrity(ctx)
	if err != nil {
		return dataplane.Broken, fmt.Errorf("iptables: integrity: %w", err)
	}
	return i, nil
}

func (b *Backend) integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	k := &b.kernel
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return dataplane.Broken, err
	}
	if b.l.localhost(nft.IPv4, &b.state.rules) {
		if on, err := k.sysctl.Get(); err != nil || !on {
			return dataplane.Broken, err
		}
	}
	if gen.ID == k.gen {
		return dataplane.Intact, nil
	}
	if same, err := k.stillAt(ctx, b.l, b.found.versions); err != nil || !same {
		return dataplane.Broken, err
	}
	start := time.Now()
	if !k.looks.Allow(start) {
		return dataplane.Touched, nil
	}
	whole, certain, err := b.look(ctx)
	if err != nil || !whole {
		return dataplane.Broken, err
	}
	k.looks.Spend(time.Since(start)) // a look that found something was worth its time
	if certain {
		k.gen = gen.ID
	}
	return dataplane.Touched, nil
}

// look reports whether all is as it should be, as far as that can be told without reading the
// rules of services. It is not certain if the list of chains was interrupted each time.
func (b *Backend) look(ctx context.Context) (whole, certain bool, err error) {
	if whole, err = b.skeletonWhole(ctx); !whole || err != nil {
		return whole, true, err
	}
	r := &raw{}
	for i := range nft.Families {
		listed, err := b.kernel.reader.listChains(ctx, uint8(i), r)
		if err != nil || !listed {
			return true, listed, err
		}
	}
	one := len(b.l.versionsOf(r)) == len(b.found.versions)
	return one && b.l.usesOf(r) == b.found.uses, true, nil
}

// skeletonWhole reports whether the fixed chains are as they should be.
func (b *Backend) skeletonWhole(ctx context.Context) (bool, error) {
	for i, f := range nft.Families {
		if !b.state.present[i] {
			continue
		}
		for _, c := range b.l.fixed(f, b.state) {
			id := chainID{uint8(i), c.table, c.name}
			found, err := b.kernel.reader.sharedRules(ctx, id)
			if errors.Is(err, dataplane.ErrConflict) {
				continue // others keep changing it: another look will tell
			}
			if err != nil {
				return false, err
			}
			if !sameRules(b.l.ours(id, rulesOf(found), c.rules, c.shared), c.rules) {
				return false, nil
			}
		}
	}
	return true, nil
}

// Commit writes a change set, and repairs what drifted, in one transaction. Where the socket cannot
// send so much at once, as in an unprivileged user namespace, service ports that are new come in
// several transactions, each of which leaves whole ones.
func (b *Backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	start := time.Now()
	if !b.observed {
		return dataplane.Stats{}, errNotObserved
	}
	stats, err := parts.Commit(c, func(c *servicemodel.ChangeSet) (dataplane.Stats, error) {
		stats, p, err := b.write(ctx, c, nil)
		if err == nil {
			b.committed(p)
		}
		return stats, err
	})
	if err != nil {
		return dataplane.Stats{}, b.failed("commit", err)
	}
	stats.Duration = time.Since(start)
	b.log.DebugContext(ctx, "committed", logkey.Backend, Name, logkey.Instance,
		b.l.names.prefix, logkey.Messages, stats.Messages, logkey.Bytes, stats.Bytes,
		logkey.Duration, stats.Duration)
	return stats, nil
}

// Cleanup removes the instance: its jumps, its chains, and base chains and tables that are left
// with nothing in them. Chains that somebody else's rules lead to stay, KUBE-MARK-MASQ with what
// is in it. Where a kube-proxy in iptables mode has begun since the last commit, the chains that it
// has, too, are its own, and stay with what leads to them: "Back to kube-proxy" in the package
// documentation.
func (b *Backend) Cleanup(ctx context.Context) (dataplane.Stats, error) {
	start := time.Now()
	_, r, err := b.observe(ctx)
	if err != nil {
		return dataplane.Stats{}, fmt.Errorf("iptables: cleanup: %w", err)
	}
	var stats dataplane.Stats
	if b.l.handedBack(r) {
		stats, err = b.commit(ctx, b.l.planHandedBack(&b.found, r))
		b.log.InfoContext(ctx, "kube-proxy has begun: its chains stay", logkey.Backend, Name,
			logkey.Instance, b.l.names.prefix)
	} else {
		stats, _, err = b.write(ctx, servicemodel.Diff(b.state.table, nil), r)
	}
	if err != nil {
		return dataplane.Stats{}, b.failed("cleanup", err)
	}
	b.observed = false
	stats.Duration = time.Since(start)
	return stats, nil
}

// failed wraps an error after which the kernel must be observed again.
func (b *Backend) failed(doing string, err error) error {
	b.observed = false
	if lacks := kernelprobe.Missing(err, &b.kernel.batch); lacks != nil {
		return fmt.Errorf("iptables: %s: %w", doing, lacks)
	}
	if conflicts(err) {
		return fmt.Errorf("iptables: %s: %w: %w", doing, dataplane.ErrConflict, err)
	}
	return fmt.Errorf("iptables: %s: %w", doing, err)
}

// conflicts reports whether the kernel refused a transaction since somebody changed something:
// what was to be deleted or inserted before is gone, what was to be made is there, or a rule
// leads to what was to go.
func conflicts(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}
