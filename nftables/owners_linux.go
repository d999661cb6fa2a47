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
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

var _ dataplane.PartReader = (*Backend)(nil)

// ObserveParts reads what owners hold, by asking for it: the index of owners says what to ask for.
// It takes about a millisecond, however much others hold. Source ranges of an owner's frontends
// take a dump of all source ranges, and UDP node ports one of all frontends.
//
// Where the index is not whole, and where sets, chains or the version are not as they should be, it
// reads everything, and the next commit makes whole what is broken without losing what others hold.
func (b *Backend) ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (
	*dataplane.Observation, error) {
	doubted := b.doubted
	b.observed, b.doubted = false, version{}
	p := &partsReading{k: &b.kernel, table: b.pl.table, owners: owners, want: want,
		crowded: b.crowded, doubted: doubted}
	o, err := p.observe(ctx)
	if err == nil && !p.owning.whole && p.damaged(o.Table) {
		p = &partsReading{k: p.k, table: p.table, owners: owners, want: want, damage: true}
		o, err = p.observe(ctx)
	}
	if err == nil {
		b.pl.have, b.pl.drift = p.have, p.drift
		b.pl.version, b.pl.owning = p.version, &p.owning
		b.rules, b.pl.localnet, b.sweep = o.Table.Rules(), p.localnet, nil
		if err = b.lookAtLocalnet(o); err != nil {
			return nil, fmt.Errorf("nftables: observe parts: %w", err)
		}
		b.observed = true
		if p.version.unswept {
			b.sweep = sweepAll(o.Table)
		}
		return o, nil
	}
	if interrupted(err) {
		err = fmt.Errorf("%w: %w", dataplane.ErrConflict, err)
	}
	return nil, fmt.Errorf("nftables: observe parts: %w", err)
}

// Owners lists the owners of frontends.
func (b *Backend) Owners(ctx context.Context) (owners []string, err error) {
	seen := map[string]bool{}
	for _, f := range nft.Families {
		for _, k := range kinds {
			err := b.kernel.dumpElements(ctx, f, b.pl.table, k.registry, func(e nft.Elem) error {
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
	k      *kernel
	table  string
	owners []string
	want   *servicemodel.Table
	// crowded says that a set was full, so that the tables are to be made anew. doubted is a
	// version that has elements which were not found.
	crowded bool
	doubted version
	damage  bool // what the owners hold was read, and is not whole
	other   bool // another version has made a table

	raw   [2]*rawTable
	have  [2]skeleton
	drift [2]map[string]*nft.ElemList
	text  []string // of the drift
	rules servicemodel.Rules
	// localnet is what the sysctl route_localnet was before.
	localnet bool
	version  version
	owning   owning
}

// observe reads all of the tables but their elements, and then what matters of those.
func (p *partsReading) observe(ctx context.Context) (*dataplane.Observation, error) {
	gen, err := p.k.conn.GenID(ctx)
	if err != nil {
		return nil, err
	}
	if p.version, err = p.k.readVersion(ctx, p.table); err != nil {
		return nil, err
	}
	p.owning = owning{owners: p.owners, families: [2]ownership{newOwnership(), newOwnership()}}
	for i, f := range nft.Families {
		if err := p.readSkeleton(ctx, i, f); err != nil {
			return nil, err
		}
	}
	p.owning.whole = !p.sound()
	c, err := p.readElements(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.k.requireVersion(ctx, p.table, p.version); err != nil {
		return nil, err
	}
	p.k.gen = gen.ID
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, fmt.Errorf("what the kernel holds: %w", err)
	}
	return &dataplane.Observation{Table: t, Drift: p.text, OtherLayout: p.other}, nil
}

// damaged reports whether what the owners hold is other than what the index says, or there in part
// only.
func (p *partsReading) damaged(t *servicemodel.Table) bool {
	for i, f := range nft.Families {
		held := newOwnership()
		held.parts(f, p.owners, t)
		for _, owner := range p.owners {
			if !slices.Equal(held.frontends[owner], p.owning.families[i].frontends[owner]) {
				return true
			}
		}
		if len(p.drift[i]) > 0 {
			return true
		}
	}
	return false
}

// readElements reads of the elements what matters.
func (p *partsReading) readElements(ctx context.Context) (c servicemodel.Contents, err error) {
	c.Rules = p.rules
	for i, f := range nft.Families {
		switch {
		case p.raw[i] == nil:
			continue
		case p.owning.whole:
			err = p.readWhole(ctx, i, f, &c)
		default:
			err = p.readParts(ctx, i, f, &c)
		}
		if err != nil {
			return c, err
		}
		if c.Rules.MasqueradeMark == 0 && p.want == nil {
			c.Rules = defaultRules() // nobody brings others
		}
		p.have[i].broken = p.have[i].broken || p.crowded
	}
	return c, nil
}

// defaultRules are for tables whose own cannot be read.
func defaultRules() servicemodel.Rules {
	t, _ := servicemodel.Resolve(nil, servicemodel.State{}) // an empty state is valid
	return t.Rules()
}

// readSkeleton reads what a table is made of, and its settings.
func (p *partsReading) readSkeleton(ctx context.Context, i int, f *nft.Family) error {
	raw, err := p.k.readTable(ctx, f, p.table)
	if err != nil || raw == nil {
		return err
	}
	if raw.has(setSettings) {
		err := p.k.dumpSet(ctx, f, raw, setSettings, func(e nft.Elem) {
			raw.add(setSettings, cloneElem(e))
		})
		if err != nil {
			return err
		}
	}
	r := &reading{f: f, elems: raw.elems}
	rules, localnet, err := r.settings()
	if err == nil && rules.MasqueradeMark == 0 {
		err = errors.New("no settings")
	}
	p.raw[i] = raw
	var why []string
	p.have[i], why = readSkeleton(f, raw, rules)
	if err != nil {
		why = append(why, fmt.Sprintf("table %s: %v", f.Name, err))
	}
	switch {
	case err != nil:
		p.have[i].broken, p.other = true, p.other || errors.Is(err, settings.ErrLayout)
	case p.rules.MasqueradeMark == 0:
		p.rules, p.localnet = rules, localnet
	case !p.rules.Equal(rules):
		p.have[i].broken = true
		why = append(why, "the tables ip and ip6 were made for different settings")
	}
	p.text = append(p.text, why...)
	return nil
}

// sound reports whether the tables can be read by the index. Where it is not, that is drift.
func (p *partsReading) sound() bool {
	for i, raw := range p.raw {
		switch {
		case raw == nil:
			continue
		case p.version.number == 0:
			p.have[i].broken = true // what others write in one of the tables would not be noticed
			p.text = append(p.text, "the tables have no version")
			return false
		case !p.version.owners, p.damage, !indexFits(raw):
			p.text = append(p.text, "the index of owners is not whole")
			return false
		case p.have[i].broken, p.version.unswept, p.crowded, p.version == p.doubted:
			return false
		}
	}
	return true
}

// indexFits reports whether as many frontends are indexed as there are, as far as the kernel tells.
func indexFits(raw *rawTable) bool {
	n, told := raw.counts[setOwnerFrontends]
	return !told || n == raw.counts[kindService.registry]+raw.counts[kindNodePort.registry]
}

// readWhole reads all of a table that is there, also if the table is broken: then it is made anew
// of what is whole.
func (p *partsReading) readWhole(ctx context.Context, i int, f *nft.Family,
	c *servicemodel.Contents) error {
	raw, have := p.raw[i], &p.have[i]
	s := newSift(f, raw, &have.shape, nil)
	s.sets = slices.DeleteFunc(s.sets, func(set *nft.Set) bool {
		return raw.sets[set.Name] != set.Spec()
	})
	for _, set := range s.sets {
		if !isRead(set.Name) {
			continue
		}
		err := p.k.dumpSet(ctx, f, raw, set.Name, func(e nft.Elem) {
			raw.add(set.Name, cloneElem(e))
		})
		if err != nil {
			return err
		}
	}
	o := p.interpret(i, f, c)
	for _, set := range []string{setClusterIPs, setHairpins} {
		for _, e := range raw.elems[set] {
			if a, ok := addressIn(f, set, e.Elem); ok {
				p.owning.families[i].users[set][a] = usersOf(e.Elem)
			}
		}
	}
	c.ClusterIPs = append(c.ClusterIPs, o.ClusterIPs...)
	c.Hairpins = append(c.Hairpins, o.Hairpins...)
	return nil
}

// interpret makes of the elements of a table what the model knows; what does not fit is drift.
func (p *partsReading) interpret(i int, f *nft.Family, c *servicemodel.Contents) (
	o servicemodel.Contents) {
	r := newReading(f, p.raw[i])
	r.frontends()
	o = r.verified()
	o.ClusterIPs, o.Hairpins = r.addresses(setClusterIPs), r.addresses(setHairpins)
	for _, e := range r.elems[setSettings] {
		e.seen = true
	}
	unseen := &observed{skeleton: p.have[i], drift: map[string]*nft.ElemList{}}
	r.unseen(unseen)
	p.drift[i] = unseen.drift
	p.text = append(p.text, unseen.driftText...)
	c.Frontends = append(c.Frontends, o.Frontends...)
	c.Pools = append(c.Pools, o.Pools...)
	return o
}
