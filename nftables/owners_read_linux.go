package nftables

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// readParts reads the owners' objects from a table, and the owners of the wanted objects.
func (p *partsReading) readParts(ctx context.Context, r *reading, c *servicemodel.Contents) error {
	r.expect(nil)
	o := &ownerReading{partsReading: p, r: r}
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
	var have servicemodel.Contents
	r.interpret(&have)
	if err := o.readAddresses(ctx, have, c); err != nil {
		return err
	}
	slices.SortFunc(o.others, func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	o.others = slices.CompactFunc(o.others,
		func(a, b *servicemodel.Frontend) bool { return a.Key == b.Key })
	c.Frontends = slices.Concat(c.Frontends, have.Frontends, o.others)
	c.Pools = append(c.Pools, have.Pools...)
	return nil
}

// ownerReading reads the parts of owners in one table.
type ownerReading struct {
	*partsReading
	r *reading
	q questions
	// others are the frontends of other owners that this reading needs.
	others []*servicemodel.Frontend
}

// add adds a question about an element.
func (o *ownerReading) add(set string, key []byte) {
	o.q.add(o.r.position(set), nft.Elem{Key: key})
}

// ask asks the questions, calls fn with the number and the set of each element that was found, and
// clears the questions.
func (o *ownerReading) ask(ctx context.Context, fn func(n int, set string, e nft.Elem)) error {
	all, err := o.q.all, o.k.askers[0].ask(ctx, o.r, &o.q)
	o.q = questions{}
	for n := range all {
		if a := &all[n]; err == nil && a.found {
			fn(n, o.r.sets[a.set].Name, a.elem())
		}
	}
	return err
}

// readIndex reads the owners' frontends, and the owners of the wanted frontends. It returns the
// keys of the frontends whose elements belong to the owners: the frontends in the index, and wanted
// frontends that no other owner has.
func (o *ownerReading) readIndex(ctx context.Context) ([]servicemodel.FrontendKey, error) {
	if err := o.readNumbers(ctx); err != nil {
		return nil, err
	}
	var keys []servicemodel.FrontendKey
	for _, owner := range o.owners {
		keys = append(keys, o.r.index.frontends[owner]...)
	}
	for fe := range frontendsOf(o.want, o.r.f) {
		keys = append(keys, fe.Key)
	}
	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	keys = slices.Compact(keys)
	for _, key := range keys {
		o.add(kindOf(key).registry, nft.AppendFrontend(nil, key))
	}
	taken := map[servicemodel.FrontendKey]bool{}
	err := o.ask(ctx, func(n int, set string, e nft.Elem) {
		fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), keys[n], nil)
		if err == nil && !slices.Contains(o.owners, fe.Service.Name.Namespace) {
			taken[keys[n]] = true
			o.others = append(o.others, fe)
			return
		}
		o.r.add(set, e)
	})
	return slices.DeleteFunc(keys, func(k servicemodel.FrontendKey) bool { return taken[k] }), err
}

// indexWindow is how many frontends of an owner the first request asks for.
const indexWindow = 4

// readNumbers reads the owners' frontends from the index, which numbers them from 0 on.
func (o *ownerReading) readNumbers(ctx context.Context) error {
	open := o.owners
	for from, to := 0, indexWindow; len(open) > 0; from, to = to, 2*to {
		for _, owner := range open {
			for n := from; n < to; n++ {
				o.add(setOwnerFrontends, idOf(owner).number(n))
			}
		}
		have := o.r.index.frontends
		err := o.ask(ctx, func(n int, _ string, e nft.Elem) {
			owner, r := open[n/(to-from)], nft.Reader{Bytes: e.Data}
			have[owner] = append(have[owner], r.Frontend(o.r.f.Any, false))
		})
		if err != nil {
			return err
		}
		open = slices.DeleteFunc(slices.Clone(open), func(owner string) bool {
			return len(have[owner]) < to
		})
	}
	return nil
}

// readOthers reads the frontends with the same number as a UDP node port. [dataplane.Flows] needs
// them to distinguish their flows from flows to the node port.
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
	return o.k.dumpSet(ctx, o.r, kindService.registry, func(e nft.Elem) {
		r := nft.Reader{Bytes: e.Key}
		key := r.Frontend(o.r.f.Any, false)
		if key.Protocol != servicemodel.UDP || !ports[key.Port] {
			return
		}
		fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
		if err == nil && !slices.Contains(o.owners, fe.Service.Name.Namespace) {
			o.others = append(o.others, fe)
		}
	})
}

// readFrontends reads the elements of frontends.
func (o *ownerReading) readFrontends(ctx context.Context, keys []servicemodel.FrontendKey) error {
	restricted, dumped := false, []string(nil) // the sets whose keys have more than a frontend
	take := func(_ int, set string, e nft.Elem) {
		restricted = restricted || set == setRestricted
		o.r.add(set, e)
	}
	members := map[*kind][]string{}
	for _, k := range kinds {
		for _, set := range k.memberships(o.r.f, &o.r.shape) {
			if len(set.Key) > len(k.key(o.r.f)) {
				dumped = append(dumped, set.Name)
				continue
			}
			members[k] = append(members[k], set.Name)
		}
	}
	if o.r.shape.has(sourceRanges) {
		members[kindService] = append(members[kindService], setRestricted)
	}
	for _, key := range keys {
		for _, set := range members[kindOf(key)] {
			o.add(set, nft.AppendFrontend(nil, key))
		}
	}
	if err := o.ask(ctx, take); err != nil {
		return err
	}
	for _, key := range keys {
		for set, slot := range o.r.moreSlots(kindOf(key), nft.AppendFrontend(nil, key)) {
			o.q.add(set, nft.Elem{Key: slot})
		}
		if fe := o.want.Frontend(key); fe != nil { // it may have other slots than its sets say
			o.r.w.pools(o.want, fe, func(set string, e nft.Elem) { o.add(set, e.Key) })
		}
	}
	if err := o.ask(ctx, take); err != nil {
		return err
	}
	if restricted {
		dumped = append(dumped, setSources)
	}
	own := map[servicemodel.FrontendKey]bool{}
	for _, key := range keys {
		own[key] = true
	}
	for _, set := range dumped {
		err := o.k.dumpSet(ctx, o.r, set, func(e nft.Elem) {
			r := nft.Reader{Bytes: e.Key}
			if own[r.Frontend(o.r.f.Any, strings.HasPrefix(set, kindNodePort.prefix))] {
				o.r.add(set, e)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ownedAddr is an address and its owner.
type ownedAddr struct {
	owner string
	addr  netip.Addr
}

// readAddresses reads the owners' addresses and the wanted ones: whether they belong to the owners,
// and how many owners need them.
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

// readHairpins reads from the index which endpoints of pools are hairpins of their owners.
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
		if o.r.index.hairpins[a.owner] == nil {
			o.r.index.hairpins[a.owner] = map[netip.Addr]bool{}
		}
		o.r.index.hairpins[a.owner][a.addr], hairpins[a.addr] = true, true
	})
	return hairpins, err
}

// readUsers reads how many owners need each address of a set, for the owners' addresses and the
// wanted ones. It appends the owners' addresses that exist to l.
func (o *ownerReading) readUsers(ctx context.Context, set string, have map[netip.Addr]bool,
	want iter.Seq[netip.Addr], l []netip.Addr) ([]netip.Addr, error) {
	addrs := slices.Collect(maps.Keys(have))
	for a := range want {
		if !have[a] && servicemodel.FamilyOf(a) == o.r.f.Model {
			addrs = append(addrs, a)
		}
	}
	for _, a := range addrs {
		o.add(set, appendAddrKey(nil, set, a))
	}
	err := o.ask(ctx, func(n int, _ string, e nft.Elem) {
		a := addrs[n]
		o.r.index.users[set][a] = usersOf(e)
		if have[a] {
			l = append(l, a)
		}
	})
	return l, err
}
