package nftables

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

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

// wanted returns the wanted frontends of the table.
func (o *ownerReading) wanted() (l []*servicemodel.Frontend) {
	for fe := range o.want.Frontends() {
		if fe.Key.Family() == o.f.Model {
			l = append(l, fe)
		}
	}
	return l
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
	for _, fe := range o.wanted() {
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

// ownedAddr is an address of an owner.
type ownedAddr struct {
	owner string
	addr  netip.Addr
}

// readAddresses reads the addresses of what the owners have and of what is wanted: whether they are
// theirs, and how many owners need them.
func (o *ownerReading) readAddresses(ctx context.Context, have servicemodel.Contents,
	c *servicemodel.Contents) error {
	hairpins, err := o.readHairpins(ctx, have.Pools)
	if err != nil {
		return err
	}
	clusterIPs := map[netip.Addr]bool{}
	for _, fe := range have.Frontends {
		if fe.Kind == servicemodel.ClusterIP {
			clusterIPs[fe.Key.Addr] = true
		}
	}
	c.ClusterIPs, err = o.readUsers(ctx, setClusterIPs, clusterIPs, o.want.ClusterIPs(),
		c.ClusterIPs)
	if err == nil {
		c.Hairpins, err = o.readUsers(ctx, setHairpins, hairpins, o.want.Hairpins(), c.Hairpins)
	}
	return err
}

// readHairpins reads which endpoints of pools are hairpins of their owners, by the index.
func (o *ownerReading) readHairpins(ctx context.Context, pools []*servicemodel.Pool) (
	map[netip.Addr]bool, error) {
	var asked []ownedAddr
	known := map[ownedAddr]bool{}
	for _, p := range pools {
		for _, s := range p.Slots {
			a := ownedAddr{p.ID.Service.Name.Namespace, s.Endpoint.Addr()}
			if !known[a] {
				known[a] = true
				asked = append(asked, a)
				o.add(setOwnerHairpins, idOf(a.owner).hairpin(a.addr).Key)
			}
		}
	}
	hairpins := map[netip.Addr]bool{}
	err := o.ask(ctx, func(n int, _ string, _ nft.Elem) {
		a := asked[n]
		if o.of.hairpins[a.owner] == nil {
			o.of.hairpins[a.owner] = map[netip.Addr]bool{}
		}
		o.of.hairpins[a.owner][a.addr], hairpins[a.addr] = true, true
	})
	return hairpins, err
}

// readUsers reads how many owners need addresses of a set: those that the owners have, and those
// that are wanted. It appends to l those of the owners that are there.
func (o *ownerReading) readUsers(ctx context.Context, set string, have map[netip.Addr]bool,
	want iter.Seq[netip.Addr], l []netip.Addr) ([]netip.Addr, error) {
	addrs := slices.Collect(maps.Keys(have))
	for a := range want {
		if !have[a] && servicemodel.FamilyOf(a) == o.f.Model {
			addrs = append(addrs, a)
		}
	}
	for _, a := range addrs {
		o.add(set, appendAddrKey(nil, set, a))
	}
	err := o.ask(ctx, func(n int, _ string, e nft.Elem) {
		a := addrs[n]
		o.of.users[set][a] = usersOf(e)
		if have[a] {
			l = append(l, a)
		}
	})
	return l, err
}
