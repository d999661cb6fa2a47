package nftables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// readVersion reads the version of an instance. Where the table is not there, where it has no set
// of an epoch or several, and where that has gaps, there is none.
func (k *kernel) readVersion(ctx context.Context, table string) (version, error) {
	v, sound, err := k.tryVersion(ctx, table)
	if err != nil || sound {
		return v, err
	}
	// Either somebody else has edited it, or it came in several datagrams and there was a commit in
	// between.
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

// tryVersion reads the version of an instance, and reports false if it is not whole.
func (k *kernel) tryVersion(ctx context.Context, table string) (v version, sound bool, err error) {
	sets, epoch := 0, uint32(0)
	err = k.dumpSets(ctx, nft.IPv4, table, func(s nft.SetInfo) {
		if !isVersion(s.Name) {
			return
		}
		if e, ok := epochOf(s.Name, s.Spec); ok {
			epoch = e
			sets++
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return version{}, true, nil
	}
	if err != nil || sets != 1 {
		return version{}, sets == 0, err
	}
	var elems []nft.Elem
	err = k.dumpElements(ctx, nft.IPv4, table, versionSet(epoch).Name, func(e nft.Elem) error {
		elems = append(elems, cloneElem(e))
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		err = rawnl.ErrDumpInterrupted // another epoch began
	}
	v, sound = versionOf(epoch, elems)
	return v, sound, err
}

// hasVersion asks whether a version is the last one still; if none was, whether there is none.
func (k *kernel) hasVersion(ctx context.Context, table string, v version) (bool, error) {
	if v.number == 0 {
		now, err := k.readVersion(ctx, table)
		if errors.Is(err, rawnl.ErrDumpInterrupted) {
			return false, nil // somebody writes
		}
		return now == v, err
	}
	var l nft.ElemList
	l.Add(nft.Elem{Key: nft.Native32(v.number)})
	l.Add(nft.Elem{Key: nft.Native32(v.number + 1)})
	k.req.Reset()
	nft.AppendLookup(&k.req, nft.IPv4, table, versionSet(v.epoch), &l)
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
	return last == v.number, err
}

// requireVersion fails with ErrDumpInterrupted if a version is not the last one any more.
func (k *kernel) requireVersion(ctx context.Context, table string, v version) error {
	same, err := k.hasVersion(ctx, table, v)
	if err == nil && !same {
		err = rawnl.ErrDumpInterrupted
	}
	return err
}
