package nftables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// readVersion reads the version of an instance. There is no version if no table exists, if the
// tables have no set of an epoch or several, or if the set has gaps.
func (k *kernel) readVersion(ctx context.Context, table string) (version, error) {
	v, sound, err := k.tryVersion(ctx, table)
	if err != nil || sound {
		return v, err
	}
	// Either a person edited the set, or it came in several datagrams with a commit in between.
	before, err := k.conn.GenID(ctx)
	if err != nil {
		return version{}, err
	}
	if v, sound, err = k.tryVersion(ctx, table); err != nil || sound {
		return v, err
	}
	after, err := k.conn.GenID(ctx)
	if err == nil && before.ID != after.ID {
		err = rawnl.ErrDumpInterrupted
	}
	return version{}, err
}

// tryVersion reads the version of an instance. It returns false if the version is not whole.
func (k *kernel) tryVersion(ctx context.Context, table string) (v version, sound bool, err error) {
	sets := 0
	for _, f := range nft.Families {
		err = k.query(f, table).Sets(ctx, func(s nft.SetInfo) {
			if epoch, ok := epochOf(s.Name, s.Spec); ok {
				v.home, v.epoch = f, epoch
				sets++
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return version{}, false, err
		}
	}
	if sets != 1 {
		return version{}, sets == 0, nil
	}
	var elems []nft.Elem
	err = k.query(v.home, table).Elements(ctx, versionSet(v.epoch).Name, func(e nft.Elem) error {
		elems = append(elems, e.Clone())
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		err = rawnl.ErrDumpInterrupted // another epoch began
	}
	if err == nil {
		v, sound = versionOf(v.home, v.epoch, elems)
	}
	return v, sound, err
}

// requireVersion fails with ErrDumpInterrupted if a version is no longer the last one, or if the
// instance has one and v is the zero version.
func (k *kernel) requireVersion(ctx context.Context, table string, v version) error {
	if v.number == 0 {
		now, err := k.readVersion(ctx, table)
		if err == nil && now != v {
			err = rawnl.ErrDumpInterrupted
		}
		return err
	}
	var l nft.ElemList
	l.Add(nft.Elem{Key: nft.Native32(v.number)})
	l.Add(nft.Elem{Key: nft.Native32(v.number + 1)})
	k.req.Reset()
	nft.AppendLookup(&k.req, v.home, table, versionSet(v.epoch), &l)
	last := uint32(0)
	err := k.conn.Lookup(ctx, &k.req, func(_, _ int, m rawnl.Message, found bool) error {
		if !found {
			return nil
		}
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			r := nft.Reader{Bytes: e.Key}
			last = r.Native()
			return nil
		})
	})
	if err == nil && last != v.number {
		err = rawnl.ErrDumpInterrupted
	}
	return err
}

// giveTries bounds the attempts to give a version while others commit. Each attempt takes less than
// a millisecond.
const giveTries = 20

// giveVersion gives a version to tables that lost theirs, in a transaction of its own that fails if
// any other commit precedes it. The next transaction, which makes the tables anew, increments the
// version. So of two writers that found no version, the second one fails. If giveVersion finds a
// version, it fails, because another writer has written since the tables were observed.
func (b *backend) giveVersion(ctx context.Context) error {
	k := &b.kernel
	for try := 1; ; try++ {
		gen, err := k.conn.GenID(ctx)
		if err != nil {
			return err
		}
		if err := k.requireVersion(ctx, b.pl.table, version{}); err != nil {
			return err
		}
		v := version{home: b.pl.standing().f, epoch: b.pl.first(), number: 1}
		k.batch.Reset()
		w := nft.NewEncoder(&k.batch, v.home, b.pl.table)
		w.AddSet(versionSet(v.epoch))
		w.Elements(nft.Add, versionSet(v.epoch), v.elem(v.number))
		err = k.conn.Commit(ctx, &k.batch, gen.ID)
		if err == nil {
			b.pl.version, k.gen = v, rawnl.NextGenID(k.gen)
		}
		if !errors.Is(err, rawnl.ErrGenerationChanged) || try == giveTries {
			return err
		}
	}
}
