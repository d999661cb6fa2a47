package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// sweepTries bounds how often the affinity maps are read without progress. Two or three times are
// enough, unless the kernel keeps moving them to other hash tables (see readSet).
const sweepTries = 20

// sweepTables reads the maps, one by one, and deletes entries until nothing is left to forget, or
// until its caller must wait: for packets, or because other work has its turn.
func (b *backend) sweepTables(ctx context.Context) (left bool, err error) {
	s, packets := b.sweep, wait.PacketsOf(ctx)
	for i, t := range b.pl.tables {
		if !t.exists || len(t.shape.affinity) == 0 {
			s.drop(i, func(*forget) bool { return true })
		}
	}
	for {
		at, left := s.oldest()
		switch {
		case !left:
			return false, nil
		case s.reading == nil && !packets.Over(at), !packets.Take():
			return true, nil
		case s.reading == nil:
			err = b.beginReading(ctx, packets)
		default:
			err = b.continueReading(ctx)
		}
		if err != nil {
			return true, err
		}
	}
}

// beginReading begins to read the maps. Everything that is left to forget is looked for.
func (b *backend) beginReading(ctx context.Context, packets *wait.Packets) (err error) {
	s, r := b.sweep, &mapsReading{}
	if r.done, err = packets.Wait(ctx); err != nil {
		return err
	}
	if s.tries++; s.tries > sweepTries {
		return fmt.Errorf(
			"affinity maps were read %d times, and still have clients that must be forgotten",
			sweepTries)
	}
	for i, f := range nft.Families {
		fs, left := &s.of[i], false
		fs.pending(func(*forget) { left = true })
		if !left {
			continue
		}
		learnt, err := b.kernel.readLearnt(ctx, f, b.pl.table)
		if err != nil {
			return fmt.Errorf("table %s: %w", f.Name, err)
		}
		// no client was learnt since the beginning of the last reading
		if fs.sure && learnt == fs.learnt {
			s.drop(i, func(f *forget) bool { return f.read && !r.done.Before(f.since) })
			left = false
			fs.pending(func(f *forget) { left = left || !f.read })
			if !left {
				continue
			}
		}
		fs.pending(func(f *forget) { f.read, f.found = true, false })
		fs.learnt, fs.sure = learnt, true
		r.groups[i] = b.pl.tables[i].shape.affinityGroups()
		if err := b.listMaps(ctx, r, i); err != nil {
			return fmt.Errorf("table %s: %w", f.Name, err)
		}
	}
	s.reading = r
	b.endReading()
	return nil
}

// listMaps lists the maps of a family to read. An empty map need not be read: packets that follow
// no entry of it bring none back.
func (b *backend) listMaps(ctx context.Context, r *mapsReading, family int) error {
	empty := map[string]bool{}
	err := b.kernel.query(nft.Families[family], b.pl.table).Sets(ctx, func(s nft.SetInfo) {
		empty[s.Name] = s.Count == 0
	})
	for _, group := range r.groups[family] {
		for n := range affinityMaps {
			if !empty[affinityMap(group, n)] {
				r.left = append(r.left, clientsMap{family, n, group})
			}
		}
	}
	return err
}

// endReading ends the reading if no map is left.
func (b *backend) endReading() {
	s, r := b.sweep, b.sweep.reading
	if len(r.left) > 0 {
		return
	}
	s.reading = nil
	now := time.Now()
	for i := range s.of {
		if r.groups[i] != nil { // the reading is of this family, too
			s.drop(i, func(f *forget) bool { return f.read && f.note(r.done, now, s.of[i].sure) })
		}
	}
}

// continueReading reads the next map, and deletes the entries that must go.
func (b *backend) continueReading(ctx context.Context) error {
	s, m := b.sweep, b.sweep.reading.left[0]
	f, r := nft.Families[m.family], s.reading
	if !slices.Equal(r.groups[m.family], b.pl.tables[m.family].shape.affinityGroups()) {
		s.reading = nil // there are other maps now
		return nil
	}
	s.aim()
	sure, err := b.sweepMap(ctx, f, m)
	if err != nil {
		return fmt.Errorf("table %s: map %s: %w", f.Name, affinityMap(m.group, m.number), err)
	}

	s.of[m.family].sure = s.of[m.family].sure && sure
	r.left = r.left[1:]
	b.endReading()
	return nil
}

// findTries bounds how often an affinity map is read again because the kernel was rehashing it, or
// because entries expired while they were deleted.
const findTries = 5

// expiring is the least time that an entry must have left to be deleted. An entry with less time is
// left to the kernel, because a transaction that deletes an expired entry fails as a whole. The
// entry counts as found, so the map is read once more, in case a packet renewed the entry.
const expiring = 100 * time.Millisecond

// sweepMap reads a map and deletes the entries that must go. sure says that it saw all entries.
func (b *backend) sweepMap(ctx context.Context, f *nft.Family, m clientsMap) (sure bool,
	err error) {
	for try := range findTries {
		keys, sure, err := b.findClients(ctx, f, m, expiring<<try)
		if err == nil {
			err = b.forgetClients(ctx, f, affinityMap(m.group, m.number), keys)
		}
		if len(keys) == 0 || !errors.Is(err, unix.ENOENT) {
			return sure, err
		}
	}
	return false, nil // entries expire faster than they can be deleted
}

// findClients returns the keys of the entries of an affinity map that must go, except entries that
// expire soon. sure says that the reading saw all entries: as many as the kernel counts. A complete
// reading may be unsure, because the kernel also counts expired entries until it collects them.
func (b *backend) findClients(ctx context.Context, f *nft.Family, m clientsMap,
	soon time.Duration) (keys [][]byte, sure bool, err error) {
	name := affinityMap(m.group, m.number)
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
			if b.sweep.takes(f, m.group, e) && (e.Expires == 0 || e.Expires > soon) {
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

// forgetClients deletes entries of an affinity map, in one transaction unless the socket cannot
// send so many at once. If one of them is gone, the error is ENOENT.
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
	if !errors.Is(err, rawnl.ErrBatchTooLarge) || len(keys) == 1 {
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
