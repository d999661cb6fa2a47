package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

var _ dataplane.PartReader = (*backend)(nil)

// ObserveParts reads the parts of owners by asking for their elements. The index of owners says
// which elements these are. It takes about a millisecond, however much other owners hold. If an
// owner's frontends have source ranges, the reading dumps all source ranges. If an owner has UDP
// node ports, it dumps all frontends.
//
// If the index is not whole, or sets, chains or the version are not as they should be, it reads
// everything. The next commit then mends the tables without losing objects of other owners.
func (b *backend) ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (
	*dataplane.Observation, error) {
	doubted := b.doubted
	b.observed, b.doubted = false, version{}
	p := &partsReading{k: &b.kernel, table: b.pl.table, owners: owners, want: want,
		doubted: doubted}
	t, err := p.read(ctx, b.crowded)
	if err == nil && !p.otherLayout() && !p.whole && p.damaged(t) {
		p.damage = true
		t, err = p.read(ctx, false)
	}
	if err != nil {
		return nil, readError("observe parts", err)
	}
	alone := false
	if want.Len() == 0 {
		if alone, err = b.alone(ctx, p, t); err != nil {
			return nil, readError("observe parts", err)
		}
	}
	o := b.remember(p.snapshot, t)
	o.Alone = alone
	b.pl.owning = &owning{owners: owners, whole: p.whole}
	return o, b.lookAtLocalnet(o)
}

// alone reports whether only the owners of a reading hold anything. Linux before 6.16 does not tell
// how many frontends there are. Then all are read.
func (b *backend) alone(ctx context.Context, p *partsReading, t *servicemodel.Table) (bool, error) {
	if p.whole || p.otherLayout() {
		return t.WithoutParts(p.owners...).Len() == 0, nil
	}
	for _, r := range p.tables {
		held := 0
		for _, l := range r.index.frontends {
			held += len(l)
		}
		switch n, told := r.told[kindService.registry]; {
		case !r.exists:
		case !told:
			owners, err := b.Owners(ctx)
			return !slices.ContainsFunc(owners, func(o string) bool {
				return !slices.Contains(p.owners, o)
			}), err
		case n+r.told[kindNodePort.registry] != held:
			return false, nil
		}
	}
	return true, nil
}

// Owners lists the owners of frontends.
func (b *backend) Owners(ctx context.Context) (owners []string, err error) {
	seen := map[string]bool{}
	for _, f := range nft.Families {
		for _, k := range kinds {
			err := b.kernel.query(f, b.pl.table).Elements(ctx, k.registry, func(e nft.Elem) error {
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
				return nil, fmt.Errorf("nftables: list owners: %w: %w", dataplane.ErrConflict, err)
			case err != nil:
				return nil, fmt.Errorf("nftables: list owners: %w", err)
			}
		}
	}
	return owners, nil
}

// partsReading is one reading of parts.
type partsReading struct {
	*snapshot
	k      *kernel
	table  string
	owners []string
	want   *servicemodel.Table
	// doubted is a version whose tables have elements that no reading found.
	doubted version
	damage  bool // the owners' objects were read, and are not whole
	whole   bool // everything is read, because the index does not say what the owners hold
}

// read reads the tables without their elements, and then the elements that this reading needs.
func (p *partsReading) read(ctx context.Context, crowded bool) (*servicemodel.Table, error) {
	var err error
	if p.snapshot, err = p.k.readTables(ctx, p.table, crowded); err != nil {
		return nil, err
	}
	var c servicemodel.Contents
	if !p.otherLayout() {
		c.Rules = p.rules
	}
	p.whole = !p.sound(crowded)
	for _, r := range p.tables {
		switch {
		case p.otherLayout():
			err = p.readOther(ctx, r, &c)
		case p.version.unfinished: // they are nobody's
		case r.exists && p.whole: // the whole objects of a broken table go into the new one
			err = p.k.readElements(ctx, r, nil)
			r.countUsers()
			r.interpret(&c)
		case r.exists:
			err = p.readParts(ctx, r, &c)
		}
		if err != nil {
			return nil, err
		}
		p.text = append(p.text, r.text...)
	}
	if c.Rules.MasqueradeMark == 0 && p.want == nil && !p.otherLayout() && p.exists() {
		// no wanted table brings other rules, and an empty state is valid
		empty, _ := servicemodel.Resolve(nil, servicemodel.State{})
		c.Rules = empty.Rules()
	}
	if err := p.k.requireVersion(ctx, p.table, p.version); err != nil {
		return nil, err
	}
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, fmt.Errorf("what the kernel holds: %w", err)
	}
	return t, nil
}

// damaged reports whether the owners hold something else than the index says, or only a part of it.
func (p *partsReading) damaged(t *servicemodel.Table) bool {
	for _, r := range p.tables {
		held := newOwnership()
		held.parts(r.f, p.owners, t)
		for _, owner := range p.owners {
			if !slices.Equal(held.frontends[owner], r.index.frontends[owner]) {
				return true
			}
		}
		if len(r.drift) > 0 {
			return true
		}
	}
	return false
}

// sound reports whether the index can be used to read the tables. An index that is not whole is
// drift.
func (p *partsReading) sound(crowded bool) bool {
	if p.otherLayout() || p.version.number == 0 && p.exists() {
		return false
	}
	for _, r := range p.tables {
		switch {
		case !r.exists:
			continue
		case !p.version.owners, p.damage, !r.indexFits():
			p.text = append(p.text, "the index of owners is not whole")
			return false
		case r.broken, p.version.unswept, crowded, p.version == p.doubted:
			return false
		}
	}
	return true
}

// indexFits reports whether the index has as many frontends as the table, as far as the kernel
// tells.
func (r *reading) indexFits() bool {
	n, told := r.told[setOwnerFrontends]
	return !told || n == r.told[kindService.registry]+r.told[kindNodePort.registry]
}
