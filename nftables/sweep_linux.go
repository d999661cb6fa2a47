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
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
)

// sweepTries limits the number of readings of the affinity maps without progress. Two or three
// readings are enough, unless the kernel keeps moving the maps to other hash tables (see
// [read.Reader.Set]).
const sweepTries = 20

// sweepTables reads the maps, one by one, and deletes entries until nothing is left to forget, or
// until its caller must wait: for packets, or because other work has its turn.
func (b *backend) sweepTables(ctx context.Context) (left bool, err error) {
	s, packets := b.sweep, wait.PacketsOf(ctx)
	for i, t := range b.pl.Tables {
		if !t.Exists || len(t.Shape.Affinity) == 0 {
			s.Drop(i, func(*plan.Forget) bool { return true })
		}
	}

	for {
		at, left := s.Oldest()
		switch {
		case !left:
			return false, nil
		case s.Reading == nil && !packets.Over(at), !packets.Take():
			return true, nil
		case s.Reading == nil:
			err = b.beginReading(ctx, packets)
		default:
			err = b.continueReading(ctx)
		}

		if err != nil {
			return true, err
		}
	}
}

// beginReading begins to read the maps, for everything that is left to forget.
func (b *backend) beginReading(ctx context.Context, packets *wait.Packets) (err error) {
	s, r := b.sweep, &plan.MapsReading{}
	if r.Done, err = packets.Wait(ctx); err != nil {
		return err
	}
	if s.Tries++; s.Tries > sweepTries {
		return fmt.Errorf(
			"affinity maps were read %d times, and still have clients that must be forgotten",
			sweepTries)
	}

	for i, f := range nft.Families {
		fs, left := &s.Of[i], false
		fs.Pending(func(*plan.Forget) { left = true })
		if !left {
			continue
		}
		learnt, err := b.kernel.reader.Learnt(ctx, f, b.pl.Table)
		if err != nil {
			return fmt.Errorf("table %s: %w", f.Name, err)
		}

		// no client was learnt since the last reading began
		if fs.Sure && learnt == fs.Learnt {
			s.Drop(i, func(f *plan.Forget) bool { return f.Read && !r.Done.Before(f.Since) })
			left = false
			fs.Pending(func(f *plan.Forget) { left = left || !f.Read })
			if !left {
				continue
			}
		}

		fs.Pending(func(f *plan.Forget) { f.Read, f.Found = true, false })
		fs.Learnt, fs.Sure = learnt, true
		r.Groups[i] = b.pl.Tables[i].Shape.AffinityGroups()
		if err := b.listMaps(ctx, r, i); err != nil {
			return fmt.Errorf("table %s: %w", f.Name, err)
		}
	}

	s.Reading = r
	b.endReading()
	return nil
}

// listMaps lists the maps of a family to read. It leaves out empty maps: a packet that used no
// entry of a map cannot restore an entry.
func (b *backend) listMaps(ctx context.Context, r *plan.MapsReading, family int) error {
	empty := map[string]bool{}
	err := b.kernel.reader.About(nft.Families[family], b.pl.Table).Sets(ctx, func(s nft.SetInfo) {
		empty[s.Name] = s.Count == 0
	})
	for _, group := range r.Groups[family] {
		for n := range form.AffinityMaps {
			if !empty[form.AffinityMap(group, n)] {
				r.Left = append(r.Left, plan.ClientsMap{Family: family, Number: n, Group: group})
			}
		}
	}

	return err
}

// endReading ends the reading if no map is left.
func (b *backend) endReading() {
	s, r := b.sweep, b.sweep.Reading
	if len(r.Left) > 0 {
		return
	}
	s.Reading = nil
	now := time.Now()
	for i := range s.Of {
		if r.Groups[i] != nil { // the reading included this family
			s.Drop(i, func(f *plan.Forget) bool {
				return f.Read &&
					f.Note(r.Done, now, s.Of[i].Sure)
			})
		}
	}
}

// continueReading reads the next map, and deletes the entries that must be forgotten.
func (b *backend) continueReading(ctx context.Context) error {
	s, m := b.sweep, b.sweep.Reading.Left[0]
	f, r := nft.Families[m.Family], s.Reading
	if !slices.Equal(r.Groups[m.Family], b.pl.Tables[m.Family].Shape.AffinityGroups()) {
		s.Reading = nil // there are other maps now
		return nil
	}

	s.Aim()
	sure, err := b.sweepMap(ctx, f, m)
	if err != nil {
		return fmt.Errorf("table %s: map %s: %w", f.Name, form.AffinityMap(m.Group, m.Number), err)
	}

	s.Of[m.Family].Sure = s.Of[m.Family].Sure && sure
	r.Left = r.Left[1:]
	b.endReading()
	return nil
}

// findTries limits the number of readings of one affinity map: a reading is repeated if the kernel
// was rehashing the map, or if entries expired before they were deleted.
const findTries = 5

// expiring is the minimum time that an entry must have left to be deleted. The kernel removes
// entries with less time, because a transaction that deletes an expired entry fails as a whole.
// Such an entry counts as present, so the map is read again in case a packet renewed the entry.
const expiring = 100 * time.Millisecond

// sweepMap reads a map and deletes the entries that must be forgotten. sure says that it saw all
// entries.
func (b *backend) sweepMap(ctx context.Context, f *nft.Family, m plan.ClientsMap) (sure bool,
	err error) {
	for try := range findTries {
		keys, sure, err := b.findClients(ctx, f, m, expiring<<try)
		if err == nil {
			err = b.forgetClients(ctx, f, form.AffinityMap(m.Group, m.Number), keys)
		}
		if len(keys) == 0 || !errors.Is(err, unix.ENOENT) {
			return sure, err
		}
	}

	return false, nil // entries expire faster than they can be deleted
}

// findClients returns the keys of the entries of an affinity map that must be forgotten, except
// entries that expire soon. sure says that the reading saw at least the number of entries that the
// kernel counts. A complete reading may be unsure, because the kernel also counts expired entries
// until it collects them.
func (b *backend) findClients(ctx context.Context, f *nft.Family, m plan.ClientsMap,
	soon time.Duration) (keys [][]byte, sure bool, err error) {
	name := form.AffinityMap(m.Group, m.Number)
	for try := range findTries {
		if try > 0 {
			if err := wait.For(ctx, time.Duration(try)*5*time.Millisecond); err != nil {
				return nil, false, err
			}
		}

		count, err := b.kernel.reader.About(f, b.pl.Table).Count(ctx, name)
		if err != nil || count == 0 {
			return nil, true, err
		}
		keys = nil
		seen, twice, err := b.kernel.reader.Set(ctx, f, b.pl.Table, name, func(e nft.Elem) {
			if b.sweep.Takes(f, m.Group, e) && (e.Expires == 0 || e.Expires > soon) {
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
// send all keys at once. If an entry no longer exists, the error is ENOENT.
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
	nft.NewEncoder(&k.batch, f, b.pl.Table).Elements(nft.Delete, &nft.Set{Name: name}, &l)
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

// swept commits a version without the mark of a sweep. If another writer has committed since, that
// writer removes the mark, because its commit may also have left clients to forget.
func (b *backend) swept(ctx context.Context) error {
	v := b.pl.Version
	p := &plan.Plan{Table: b.pl.Table, Have: v, Mark: true,
		Next: v.Next(false, v.Home, b.pl.FirstEpoch, false, v.Owners)}
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
