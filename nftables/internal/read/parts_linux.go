package read

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Parts is one reading of parts.
type Parts struct {
	*Snapshot
	reader  *Reader
	table   string
	Owners  []string
	want    *servicemodel.Table
	doubted form.Version // see [NewParts]
	damage  bool         // the owners' objects were read, and are incomplete
	Whole   bool         // everything is read, because the index is not reliable
}

// NewParts returns a reading of the parts of owners. doubted is a version whose tables have
// elements that no reading found.
func NewParts(k *Reader, table string, owners []string, want *servicemodel.Table,
	doubted form.Version) *Parts {
	return &Parts{reader: k, table: table, Owners: owners, want: want, doubted: doubted}
}

// Damaged reports whether the owners' objects differ from the index.
func (p *Parts) Damaged(t *servicemodel.Table) bool {
	for _, r := range p.Tables {
		held := form.NewOwnership()
		held.Parts(r.Family, p.Owners, t)
		for _, owner := range p.Owners {
			if !slices.Equal(held.Frontends[owner], r.Index.Frontends[owner]) {
				return true
			}
		}

		if len(r.Drift) > 0 {
			return true
		}
	}

	return false
}

// sound reports whether the index can be used to read the tables. An incomplete index is drift.
func (p *Parts) sound(crowded bool) bool {
	if p.OtherLayout() || p.Version.Number == 0 && p.exists() {
		return false
	}
	for _, r := range p.Tables {
		switch {
		case !r.Exists:
			continue
		case !p.Version.Owners, p.damage, !r.indexFits():
			p.Text = append(p.Text, "the index of owners is not whole")
			return false
		case r.Broken, p.Version.Unswept, crowded, p.Version == p.doubted:
			return false
		}
	}

	return true
}

// indexFits reports whether the index has the same number of frontends as the table, if the kernel
// reports these numbers.
func (r *Reading) indexFits() bool {
	n, known := r.Lengths[form.SetOwnerFrontends]
	return !known || n+r.Lengths[form.SetOwnerRanges] == r.frontendCount()
}

// frontendCount is the number of frontends in the table, if the kernel reports it.
func (r *Reading) frontendCount() (n int) {
	for _, k := range form.Kinds {
		n += r.Lengths[k.Registry]
	}
	return n
}

// OnlyOwners reports whether only the owners of a reading have objects. Linux before 6.16 does not
// report the number of frontends. Then all frontends are read.
func (p *Parts) OnlyOwners(ctx context.Context, t *servicemodel.Table) (bool, error) {
	if p.Whole || p.OtherLayout() {
		return t.WithoutParts(p.Owners...).Len() == 0, nil
	}
	for _, r := range p.Tables {
		held := 0
		for _, l := range r.Index.Frontends {
			held += len(l)
		}
		switch _, known := r.Lengths[form.KindService.Registry]; {
		case !r.Exists:
		case !known:
			owners, err := p.reader.Owners(ctx, p.table)
			return !slices.ContainsFunc(owners, func(o string) bool {
				return !slices.Contains(p.Owners, o)
			}), err
		case r.frontendCount() != held:
			return false, nil
		}
	}

	return true, nil
}

// Owners lists the owners of frontends.
func (k *Reader) Owners(ctx context.Context, table string) (owners []string, err error) {
	seen := map[string]bool{}
	for _, f := range nft.Families {
		for _, kind := range form.Kinds {
			err := k.About(f, table).Elements(ctx, kind.Registry, func(e nft.Elem) error {
				owner, _, ok := strings.Cut(nft.CommentOf(e.UserData), "/")
				if ok && !seen[owner] {
					seen[owner] = true
					owners = append(owners, owner)
				}

				return nil
			})
			switch {
			case errors.Is(err, unix.ENOENT):
			case errors.Is(err, rawnl.ErrDumpInterrupted):
				return nil, fmt.Errorf("nftables: list owners: %w: %w", kernelerr.ErrConflict, err)
			case err != nil:
				return nil, fmt.Errorf("nftables: list owners: %w", err)
			}
		}
	}

	return owners, nil
}

// countUsers reads the numbers of owners that need the found addresses.
func (r *Reading) countUsers() {
	for _, set := range form.AddressSets {
		for _, e := range r.Elems[set] {
			if a, ok := form.AddressIn(r.Family, set, *e); ok {
				r.Index.Users[set][a] = form.UsersOf(*e)
			}
		}
	}
}
