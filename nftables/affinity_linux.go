package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// sweepTries bounds how often the affinity maps are read without progress. Two or three times are
// enough, unless the kernel keeps moving them to other hash tables (see readSet).
const sweepTries = 20

// sweepTables reads the maps and deletes entries until nothing is left to forget, or until it must
// wait for packets and its caller does that.
func (b *backend) sweepTables(ctx context.Context) (left bool, err error) {
	for i, t := range b.pl.tables {
		if !t.exists || len(t.shape.affinity) == 0 {
			b.sweep.drop(i, func(*forget) bool { return true })
		}
	}
	packets := wait.PacketsOf(ctx)
	for {
		at, left := b.sweep.oldest()
		if !left || !packets.Over(at) {
			return left, nil
		}
		done, err := packets.Wait(ctx)
		if err != nil {
			return true, err
		}
		if b.sweep.tries++; b.sweep.tries > sweepTries {
			return true, fmt.Errorf(
				"affinity maps were read %d times, and still have clients that must be forgotten",
				sweepTries)
		}
		for i, f := range nft.Families {
			if err := b.sweepFamily(ctx, i, done); err != nil {
				return true, fmt.Errorf("table %s: %w", f.Name, err)
			}
		}
	}
}

// sweepFamily reads the maps of a table, and deletes the entries that must go. The kernel is done
// with the packets of the time done.
func (b *backend) sweepFamily(ctx context.Context, i int, done time.Time) error {
	s, f := &b.sweep.of[i], nft.Families[i]
	left, unread := false, false
	s.pending(func(f *forget) { left, unread = true, unread || !f.read })
	if !left {
		return nil
	}
	learnt, err := b.kernel.readLearnt(ctx, f, b.pl.table)
	if err != nil {
		return err
	}
	// no client was learnt since the beginning of the last reading
	if s.sure && learnt == s.learnt {
		b.sweep.drop(i, func(f *forget) bool { return f.read && !done.Before(f.since) })
		if !unread {
			return nil
		}
	}
	s.pending(func(f *forget) { f.aim(b.sweep.table) })
	sure := true // to have seen all entries
	for _, m := range affinityMapsOf(f, &b.pl.tables[i].shape) {
		keys, all, err := b.findClients(ctx, f, m.Name)
		if err == nil {
			err = b.forgetClients(ctx, f, m.Name, keys)
		}
		if err != nil {
			return fmt.Errorf("map %s: %w", m.Name, err)
		}
		sure = sure && all
	}
	s.learnt, s.sure = learnt, sure
	now := time.Now()
	b.sweep.drop(i, func(f *forget) bool { return f.note(done, now, sure) })
	return nil
}

// findTries bounds how often an affinity map is read again because the kernel was rehashing it.
const findTries = 5

// findClients returns the keys of the entries of an affinity map that must go. sure says that the
// reading saw all entries: as many as the kernel counts. A complete reading may be unsure, because
// the kernel also counts expired entries until it collects them.
func (b *backend) findClients(ctx context.Context, f *nft.Family, name string) (keys [][]byte,
	sure bool, err error) {
	for try := range findTries {
		if try > 0 {
			if err := wait.For(ctx, time.Duration(try)*5*time.Millisecond); err != nil {
				return nil, false, err
			}
		}
		count, err := b.kernel.query(f, b.pl.table).Count(ctx, name)
		if err != nil || count == 0 {
			return nil, true, err
		}
		keys = nil
		seen, twice, err := b.kernel.readSet(ctx, f, b.pl.table, name, func(e nft.Elem) {
			if b.sweep.takes(f, name, e) {
				keys = append(keys, bytes.Clone(e.Key))
			}
		})
		if err != nil {
			return nil, false, err
		}
		if twice == 0 {
			return keys, count > 0 && seen >= count, nil
		}
	}
	return keys, false, nil
}

// forgetClients deletes entries of an affinity map. If an entry expires before the transaction
// reaches it, the transaction fails. Then each half becomes a transaction of its own, down to the
// expired entry. The same happens if the socket cannot send so many entries at once.
func (b *backend) forgetClients(ctx context.Context, f *nft.Family, name string,
	keys [][]byte) error {
	if len(keys) == 0 {
		return nil
	}
	var l nft.ElemList
	for _, k := range keys {
		l.Add(nft.Elem{Key: k})
	}
	k := &b.kernel
	k.batch.Reset()
	nft.NewEncoder(&k.batch, f, b.pl.table).Elements(nft.Delete, &nft.Set{Name: name}, &l)
	_, err := k.commit(ctx)
	switch gone := errors.Is(err, unix.ENOENT); {
	case !gone && !errors.Is(err, rawnl.ErrBatchTooLarge):
		return err
	case len(keys) == 1 && gone:
		return nil
	case len(keys) == 1:
		return err
	}
	half := len(keys) / 2
	if err := b.forgetClients(ctx, f, name, keys[:half]); err != nil {
		return err
	}
	return b.forgetClients(ctx, f, name, keys[half:])
}

// swept commits a version without the mark of a sweep. If another writer committed meanwhile, that
// writer removes the mark, because its commit may have left clients to be forgotten, too.
func (b *backend) swept(ctx context.Context) error {
	v := b.pl.version
	p := &plan{table: b.pl.table, have: v, mark: true,
		next: v.next(false, v.home, b.pl.first, false, v.owners)}
	_, err := b.send(ctx, p)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		b.observed = false
		return nil
	}
	if err == nil {
		b.committed(p)
	}
	return err
}
