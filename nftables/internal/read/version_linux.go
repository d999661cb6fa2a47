package read

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// Version reads the version of an instance. There is no version if no table exists, if the tables
// have no set of an epoch or more than one, or if the set has gaps.
func (k *Reader) Version(ctx context.Context, table string) (form.Version, error) {
	v, sound, err := k.tryVersion(ctx, table)
	if err != nil || sound {
		return v, err
	}

	// Either a person edited the set, or the dump took several datagrams with a commit in between.
	before, err := k.Conn.GenID(ctx)
	if err != nil {
		return form.Version{}, err
	}
	if v, sound, err = k.tryVersion(ctx, table); err != nil || sound {
		return v, err
	}
	after, err := k.Conn.GenID(ctx)
	if err == nil && before.ID != after.ID {
		err = rawnl.ErrDumpInterrupted
	}
	return form.Version{}, err
}

// tryVersion reads the version of an instance. It returns false if the version is damaged.
func (k *Reader) tryVersion(ctx context.Context, table string) (v form.Version, sound bool,
	err error) {
	sets := 0
	for _, f := range nft.Families {
		err = k.About(f, table).Sets(ctx, func(s nft.SetInfo) {
			if epoch, ok := form.EpochOf(s.Name, s.Spec); ok {
				v.Home, v.Epoch = f, epoch
				sets++
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return form.Version{}, false, err
		}
	}

	if sets != 1 {
		return form.Version{}, sets == 0, nil
	}
	var elems []nft.Elem
	err = k.About(v.Home, table).Elements(ctx, form.VersionSet(v.Epoch).Name,
		func(e nft.Elem) error {
			elems = append(elems, e.Clone())
			return nil
		})
	if errors.Is(err, unix.ENOENT) {
		err = rawnl.ErrDumpInterrupted // another epoch began
	}
	if err == nil {
		v, sound = form.VersionOf(v.Home, v.Epoch, elems)
	}
	return v, sound, err
}

// RequireVersion fails with ErrDumpInterrupted if v is no longer the latest version. The zero v
// stands for an instance without a version.
func (k *Reader) RequireVersion(ctx context.Context, table string, v form.Version) error {
	if v.Number == 0 {
		now, err := k.Version(ctx, table)
		if err == nil && now != v {
			err = rawnl.ErrDumpInterrupted
		}
		return err
	}

	var l nft.ElemList
	l.Add(nft.Elem{Key: nft.Native32(v.Number)})
	l.Add(nft.Elem{Key: nft.Native32(v.Number + 1)})
	k.Req.Reset()
	nft.AppendLookup(&k.Req, v.Home, table, form.VersionSet(v.Epoch), &l)
	last := uint32(0)
	err := k.Conn.Lookup(ctx, &k.Req, func(_, _ int, m rawnl.Message, found bool) error {
		if !found {
			return nil
		}
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			r := nft.Reader{Bytes: e.Key}
			last = r.Native()
			return nil
		})
	})
	if err == nil && last != v.Number {
		err = rawnl.ErrDumpInterrupted
	}
	return err
}
