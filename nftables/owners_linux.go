package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
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
	p := &partsReading{k: &b.kernel, table: b.pl.table, owners: owners, want: want}
	o, err := p.observe(ctx, b.crowded, doubted)
	if err == nil {
		b.pl.have, b.pl.drift = p.have, p.drift
		b.pl.version, b.pl.owning = p.version, &p.owning
		b.rules, b.observed, b.sweep = o.Table.Rules(), true, nil
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

	raw     [2]*rawTable
	have    [2]skeleton
	drift   [2]map[string]*nft.ElemList
	text    []string // of the drift
	rules   servicemodel.Rules
	version version
	owning  owning
}

// observe reads all of the tables but their elements, and then what matters of those. crowded says
// that a set was full, and doubted is a version that has elements which were not found.
func (p *partsReading) observe(ctx context.Context, crowded bool, doubted version) (
	*dataplane.Observation, error) {
	gen, err := p.k.conn.GenID(ctx)
	if err != nil {
		return nil, err
	}
	if p.version, err = p.k.readVersion(ctx, p.table); err != nil {
		return nil, err
	}
	p.owning = owning{owners: p.owners, families: [2]ownership{newOwnership(), newOwnership()}}
	p.owning.whole = crowded || p.version.number != 0 && p.version.number == doubted.number
	for i, f := range nft.Families {
		if err := p.readSkeleton(ctx, i, f); err != nil {
			return nil, err
		}
	}
	p.owning.whole = p.owning.whole || !p.sound()
	var c servicemodel.Contents
	for i, f := range nft.Families {
		if p.raw[i] == nil {
			continue
		}
		read := p.readParts
		if p.owning.whole {
			read = p.readWhole
		}
		if err := read(ctx, i, f, &c); err != nil {
			return nil, err
		}
		p.have[i].broken = p.have[i].broken || crowded
	}
	after, err := p.k.readVersion(ctx, p.table)
	if err == nil && after != p.version {
		err = rawnl.ErrDumpInterrupted
	}
	if err != nil {
		return nil, err
	}
	p.k.gen = gen.ID
	if c.Rules = p.rules; c.Rules.MasqueradeMark == 0 && (p.have[0].exists || p.have[1].exists) {
		c.Rules = defaultRules()
	}
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, fmt.Errorf("what the kernel holds: %w", err)
	}
	return &dataplane.Observation{Table: t, Drift: p.text}, nil
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
	rules, err := r.settings()
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
		p.have[i].broken = true
	case p.rules.MasqueradeMark == 0:
		p.rules = rules
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
		case !p.version.owners, !indexFits(raw):
			p.text = append(p.text, "the index of owners is not whole")
			return false
		case p.have[i].broken, p.version.unswept:
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

// readParts reads what the owners hold of a table, and who holds what they want.
func (p *partsReading) readParts(ctx context.Context, i int, f *nft.Family,
	c *servicemodel.Contents) error {
	o := &ownerReading{partsReading: p, f: f, family: i, raw: p.raw[i],
		sift: newSift(f, p.raw[i], &p.have[i].shape, nil), of: &p.owning.families[i]}
	keys, err := o.readIndex(ctx)
	if err != nil {
		return err
	}
	if err := o.readOthers(ctx, keys); err != nil {
		return err
	}
	if err := o.readFrontends(ctx, keys); err != nil {
		return err
	}
	if err := o.readAddresses(ctx, p.interpret(i, f, c), c); err != nil {
		return err
	}
	slices.SortFunc(o.others, func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	c.Frontends = append(c.Frontends, slices.CompactFunc(o.others,
		func(a, b *servicemodel.Frontend) bool { return a.Key == b.Key })...)
	return nil
}

// ownerReading is the reading of parts of one table.
type ownerReading struct {
	*partsReading
	f      *nft.Family
	family int
	raw    *rawTable
	sift   *sift
	of     *ownership
	chunk  chunk
	// others are the frontends of others that matter.
	others []*servicemodel.Frontend
}

// add adds an element to the chunk.
func (o *ownerReading) add(set string, key []byte) {
	o.chunk.add(o.sift.position(set), nft.Elem{Key: key})
}

// ask asks for the elements of the chunk, calls fn with the number and the set of each that is
// there, and empties the chunk.
func (o *ownerReading) ask(ctx context.Context, fn func(n int, set string, e nft.Elem)) error {
	elems, err := o.chunk.elems, o.k.askers[0].ask(ctx, o.sift, &o.chunk)
	o.chunk = chunk{}
	for n := range elems {
		if a := &elems[n]; err == nil && a.found {
			fn(n, o.sift.sets[a.set].Name, cloneElem(a.elem()))
		}
	}
	return err
}

// wanted yields the wanted frontends of the table.
func (o *ownerReading) wanted(yield func(*servicemodel.Frontend) bool) {
	for fe := range o.want.Frontends() {
		if fe.Key.Family() == o.f.Model && !yield(fe) {
			return
		}
	}
}

// readIndex reads which frontends the owners have, and who has those that are wanted. It returns
// the keys whose elements are the owners': those in the index, and those that are wanted, but for
// those of others.
func (o *ownerReading) readIndex(ctx context.Context) ([]servicemodel.FrontendKey, error) {
	if err := o.readNumbers(ctx); err != nil {
		return nil, err
	}
	var keys []servicemodel.FrontendKey
	for _, owner := range o.owners {
		keys = append(keys, o.of.frontends[owner]...)
	}
	for fe := range o.wanted {
		keys = append(keys, fe.Key)
	}
	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	keys = slices.Compact(keys)
	for _, key := range keys {
		o.add(kindOf(key).registry, nft.AppendFrontend(nil, key))
	}
	taken := map[servicemodel.FrontendKey]bool{}
	err := o.ask(ctx, func(n int, set string, e nft.Elem) {
		fe, err := comment.Parse(nft.CommentOf(e.UserData), keys[n], nil)
		if err == nil && !slices.Contains(o.owners, fe.Service.Name.Namespace) {
			taken[keys[n]] = true
			o.others = append(o.others, fe)
			return
		}
		o.raw.add(set, e)
	})
	return slices.DeleteFunc(keys, func(k servicemodel.FrontendKey) bool { return taken[k] }), err
}

// indexWindow is how many frontends of an owner are asked for at first.
const indexWindow = 4

// readNumbers reads which frontends the owners have by the index, which numbers them from 0 on.
func (o *ownerReading) readNumbers(ctx context.Context) error {
	open := o.owners
	for from, to := 0, indexWindow; len(open) > 0; from, to = to, 2*to {
		for _, owner := range open {
			for n := from; n < to; n++ {
				o.add(setOwnerFrontends, idOf(owner).number(n))
			}
		}
		err := o.ask(ctx, func(n int, _ string, e nft.Elem) {
			owner, r := open[n/(to-from)], nft.Reader{Bytes: e.Data}
			o.of.frontends[owner] = append(o.of.frontends[owner], r.Frontend(o.f.Any, false))
		})
		if err != nil {
			return err
		}
		open = slices.DeleteFunc(slices.Clone(open), func(owner string) bool {
			return len(o.of.frontends[owner]) < to
		})
	}
	return nil
}

// readOthers reads the frontends of others that [dataplane.Flows] must know to tell their flows
// from those of a UDP node port: those with its number.
func (o *ownerReading) readOthers(ctx context.Context, keys []servicemodel.FrontendKey) error {
	ports := map[uint16]bool{}
	for _, key := range keys {
		if key.NodePort() && key.Protocol == servicemodel.UDP {
			ports[key.Port] = true
		}
	}
	if len(ports) == 0 {
		return nil
	}
	return o.k.dumpSet(ctx, o.f, o.raw, kindService.registry, func(e nft.Elem) {
		r := nft.Reader{Bytes: e.Key}
		key := r.Frontend(o.f.Any, false)
		if key.Protocol != servicemodel.UDP || !ports[key.Port] {
			return
		}
		fe, err := comment.Parse(nft.CommentOf(e.UserData), key, nil)
		if err == nil && !slices.Contains(o.owners, fe.Service.Name.Namespace) {
			o.others = append(o.others, fe)
		}
	})
}

// readFrontends reads the elements of frontends.
func (o *ownerReading) readFrontends(ctx context.Context, keys []servicemodel.FrontendKey) error {
	restricted := false
	take := func(_ int, set string, e nft.Elem) {
		restricted = restricted || set == setRestricted
		o.raw.add(set, e)
	}
	members := [2][]string{}
	for i, k := range kinds {
		for _, set := range k.memberships(o.f, o.have[o.family].shape.sizes[i],
			o.have[o.family].shape.affinity) {
			members[i] = append(members[i], set.Name)
		}
	}
	if o.have[o.family].shape.sources {
		members[0] = append(members[0], setRestricted)
	}
	for _, key := range keys {
		for _, set := range members[kindIndex(key)] {
			o.add(set, nft.AppendFrontend(nil, key))
		}
	}
	if err := o.ask(ctx, take); err != nil {
		return err
	}
	for _, key := range keys {
		o.addSlots(key)
	}
	if err := o.ask(ctx, take); err != nil || !restricted {
		return err
	}
	own := map[servicemodel.FrontendKey]bool{}
	for _, key := range keys {
		own[key] = true
	}
	return o.k.dumpSet(ctx, o.f, o.raw, setSources, func(e nft.Elem) {
		r := nft.Reader{Bytes: e.Key}
		if own[r.Frontend(o.f.Any, false)] {
			o.raw.add(setSources, cloneElem(e))
		}
	})
}

// addSlots asks for the slots of a frontend: as many as it has by the sets, and as are wanted.
func (o *ownerReading) addSlots(key servicemodel.FrontendKey) {
	o.sift.addSlots(&o.chunk, kindOf(key).registry, nft.AppendFrontend(nil, key))
	fe := o.want.Frontend(key)
	if fe == nil {
		return
	}
	internal, external := o.want.PoolsOf(fe)
	o.sift.w.slots(fe, false, nil, internal, nil, o.addSlot)
	o.sift.w.slots(fe, true, nil, external, nil, o.addSlot)
}

func (o *ownerReading) addSlot(set string, e nft.Elem) { o.add(set, slices.Clone(e.Key)) }

// readAddresses reads the addresses of what the owners have and of what is wanted: whether they are
// theirs, and how many others need them.
func (o *ownerReading) readAddresses(ctx context.Context, have servicemodel.Contents,
	c *servicemodel.Contents) error {
	clusterIPs, hairpins := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, fe := range have.Frontends {
		if fe.Kind == servicemodel.ClusterIP {
			clusterIPs[fe.Key.Addr] = true
		}
	}
	type use struct {
		owner string
		addr  netip.Addr
	}
	uses := map[use]bool{}
	for _, p := range have.Pools {
		for _, s := range p.Slots {
			uses[use{p.ID.Service.Name.Namespace, s.Endpoint.Addr()}] = true
		}
	}
	var asked []use
	for u := range uses {
		id := idOf(u.owner)
		o.add(setOwnerHairpins, id.hairpin(u.addr).Key)
		asked = append(asked, u)
	}
	err := o.ask(ctx, func(n int, _ string, _ nft.Elem) {
		u := asked[n]
		if o.of.hairpins[u.owner] == nil {
			o.of.hairpins[u.owner] = map[netip.Addr]bool{}
		}
		o.of.hairpins[u.owner][u.addr], hairpins[u.addr] = true, true
	})
	if err != nil {
		return err
	}
	addrs := []netip.Addr{}
	check := func(set string, own map[netip.Addr]bool, wanted bool, a netip.Addr) {
		if !wanted && !own[a] || servicemodel.FamilyOf(a) != o.f.Model {
			return
		}
		o.add(set, appendAddrKey(nil, set, a))
		addrs = append(addrs, a)
	}
	for a := range clusterIPs {
		check(setClusterIPs, clusterIPs, false, a)
	}
	for a := range o.want.ClusterIPs() {
		check(setClusterIPs, nil, !clusterIPs[a], a)
	}
	for a := range hairpins {
		check(setHairpins, hairpins, false, a)
	}
	for a := range o.want.Hairpins() {
		check(setHairpins, nil, !hairpins[a], a)
	}
	return o.ask(ctx, func(n int, set string, e nft.Elem) {
		a := addrs[n]
		o.of.users[set][a] = usersOf(e)
		if set == setClusterIPs && clusterIPs[a] {
			c.ClusterIPs = append(c.ClusterIPs, a)
		}
		if set == setHairpins && hairpins[a] {
			c.Hairpins = append(c.Hairpins, a)
		}
	})
}
