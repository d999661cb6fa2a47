package nftables

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// ownerReading reads the parts of owners in one table, through the index of owners.
type ownerReading struct {
	*partsReading
	r *reading
	// keys are the frontends whose elements belong to the owners: the frontends in the index, and
	// wanted frontends that no other owner has.
	keys []servicemodel.FrontendKey
	// others are the frontends of other owners that this reading needs.
	others []*servicemodel.Frontend
	// have is the meaning of the owners' elements.
	have servicemodel.Contents
}

// readParts reads the owners' objects from a table, and the owners of the wanted objects, in this
// order:
//
//  1. The index names the owners' frontends.
//  2. Their comments, and those of the wanted ones, name their owners and service ports.
//  3. [dataplane.Flows] needs the frontends of others with the number of a UDP node port.
//  4. The sets in which the owners' frontends are say how many slots they have.
//  5. With their slots, the frontends and pools are known.
//  6. Some of their endpoints are hairpins of the owners.
//  7. Other owners may share the addresses.
func (p *partsReading) readParts(ctx context.Context, r *reading, c *servicemodel.Contents) error {
	o := &ownerReading{partsReading: p, r: r}
	err := r.take(ctx, []step{
		{"ask the index for frontends", o.askIndex},
		{"ask for the owners of frontends", o.askFrontends},
		{"dump the frontends beside a node port", o.dumpBeside},
		{"ask for what is said about frontends", o.askMembers},
		{"ask for slots", o.k.asking(o.r.moreSlots)},
		{"ask for hairpins", o.askHairpins},
		{"ask for addresses", o.askAddresses},
	})
	if err != nil {
		return err
	}
	slices.SortFunc(o.others, func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	o.others = slices.CompactFunc(o.others,
		func(a, b *servicemodel.Frontend) bool { return a.Key == b.Key })
	c.Frontends = slices.Concat(c.Frontends, o.have.Frontends, o.others)
	c.Pools = append(c.Pools, o.have.Pools...)
	c.ClusterIPs = append(c.ClusterIPs, o.have.ClusterIPs...)
	c.Hairpins = append(c.Hairpins, o.have.Hairpins...)
	return nil
}

// indexWindow is how many frontends of an owner the first request asks for.
const indexWindow = 4

// askIndex reads the owners' frontends from the index, which numbers them from 0 on.
func (o *ownerReading) askIndex(ctx context.Context, r *reading) error {
	have, open := r.index.frontends, o.owners
	for from, to := 0, indexWindow; len(open) > 0; from, to = to, 2*to {
		err := o.k.asking(func(ask asks) {
			for _, owner := range open {
				for n := from; n < to; n++ {
					ask(setOwnerFrontends, idOf(owner).number(n))
				}
			}
		})(ctx, r)
		if err != nil {
			return err
		}
		for _, owner := range open {
			for n := from; n < to; n++ {
				if e := r.elems[setOwnerFrontends][string(idOf(owner).number(n))]; e != nil {
					rd := nft.Reader{Bytes: e.Data}
					have[owner] = append(have[owner], rd.Frontend(r.f.Any, false))
				}
			}
		}
		open = slices.DeleteFunc(slices.Clone(open), func(owner string) bool {
			return len(have[owner]) < to
		})
	}
	return nil
}

// askFrontends asks for the owners' frontends and the wanted ones.
func (o *ownerReading) askFrontends(ctx context.Context, r *reading) error {
	for _, owner := range o.owners {
		o.keys = append(o.keys, r.index.frontends[owner]...)
	}
	for fe := range frontendsOf(o.want, r.f) {
		o.keys = append(o.keys, fe.Key)
	}
	slices.SortFunc(o.keys, servicemodel.FrontendKey.Compare)
	o.keys = slices.Compact(o.keys)
	err := o.k.asking(func(ask asks) {
		for _, key := range o.keys {
			ask(kindOf(key).registry, nft.AppendFrontend(nil, key))
		}
	})(ctx, r)
	o.keys = slices.DeleteFunc(o.keys, func(key servicemodel.FrontendKey) bool {
		in, at := r.elems[kindOf(key).registry], string(nft.AppendFrontend(nil, key))
		if in[at] == nil || !o.isOthers(key, *in[at]) {
			return false
		}
		delete(in, at)
		return true
	})
	return err
}

// isOthers reports whether an element of a registry is a frontend of another owner, and keeps the
// frontend.
func (o *ownerReading) isOthers(key servicemodel.FrontendKey, e nft.Elem) bool {
	fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
	if err != nil || slices.Contains(o.owners, fe.Service.Name.Namespace) {
		return false
	}
	o.others = append(o.others, fe)
	return true
}

// dumpBeside reads the frontends with the same number as a UDP node port. [dataplane.Flows] needs
// them to distinguish their flows from flows to the node port.
func (o *ownerReading) dumpBeside(ctx context.Context, r *reading) error {
	ports := map[uint16]bool{}
	for _, key := range o.keys {
		if key.NodePort() && key.Protocol == servicemodel.UDP {
			ports[key.Port] = true
		}
	}
	if len(ports) == 0 {
		return nil
	}
	return o.k.dumpSet(ctx, r, kindService.registry, func(e nft.Elem) {
		rd := nft.Reader{Bytes: e.Key}
		key := rd.Frontend(r.f.Any, false)
		if key.Protocol == servicemodel.UDP && ports[key.Port] {
			o.isOthers(key, e)
		}
	})
}

// askMembers asks in which sets the frontends are. Sets whose keys have more than a frontend are
// dumped, and the source ranges only if a frontend is restricted.
func (o *ownerReading) askMembers(ctx context.Context, r *reading) error {
	own, dumped := map[servicemodel.FrontendKey]bool{}, []string(nil)
	for _, key := range o.keys {
		own[key] = true
	}
	err := o.k.asking(func(ask asks) {
		for _, k := range kinds {
			sets := k.memberships(r.f, &r.shape)
			if k == kindService {
				sets = append(sets, &nft.Set{Name: setRestricted})
			}
			for _, set := range sets {
				if len(set.Key) > len(k.key(r.f)) {
					dumped = append(dumped, set.Name)
					continue
				}
				for _, key := range o.keys {
					if kindOf(key) == k {
						ask(set.Name, nft.AppendFrontend(nil, key))
					}
				}
			}
		}
	})(ctx, r)
	if len(r.elems[setRestricted]) > 0 {
		dumped = append(dumped, setSources)
	}
	for _, set := range dumped {
		if err != nil {
			break
		}
		err = o.k.dumpSet(ctx, r, set, func(e nft.Elem) {
			rd := nft.Reader{Bytes: e.Key}
			if own[rd.Frontend(r.f.Any, strings.HasPrefix(set, kindNodePort.prefix))] {
				r.add(set, e)
			}
		})
	}
	return err
}

// askHairpins finds out what all elements mean, and asks which endpoints are hairpins of their
// owners.
func (o *ownerReading) askHairpins(ctx context.Context, r *reading) error {
	r.interpret(&o.have)
	err := o.k.asking(func(ask asks) {
		for _, p := range o.have.Pools {
			for _, s := range p.Slots {
				owner := idOf(p.ID.Service.Name.Namespace)
				ask(setOwnerHairpins, owner.hairpin(s.Endpoint.Addr()))
			}
		}
	})(ctx, r)
	for _, p := range o.have.Pools {
		owner := p.ID.Service.Name.Namespace
		for _, s := range p.Slots {
			a := s.Endpoint.Addr()
			if r.elems[setOwnerHairpins][string(idOf(owner).hairpin(a))] == nil {
				continue
			}
			if r.index.hairpins[owner] == nil {
				r.index.hairpins[owner] = map[netip.Addr]bool{}
			}
			r.index.hairpins[owner][a] = true
		}
	}
	return err
}

// askAddresses asks for the owners' addresses and the wanted ones: whether they belong to the
// owners, and how many owners need them.
func (o *ownerReading) askAddresses(ctx context.Context, r *reading) error {
	own := map[string]map[netip.Addr]bool{setClusterIPs: {}, setHairpins: {}}
	for _, fe := range o.have.Frontends {
		if fe.Kind == servicemodel.ClusterIP {
			own[setClusterIPs][fe.Key.Addr] = true
		}
	}
	for _, l := range r.index.hairpins {
		maps.Copy(own[setHairpins], l)
	}
	err := o.k.asking(func(ask asks) {
		for _, set := range addressSets {
			asked := maps.Clone(own[set])
			for a := range addressesOf(o.want, r.f, set) {
				asked[a] = true
			}
			for a := range asked {
				ask(set, appendAddrKey(nil, set, a))
			}
		}
	})(ctx, r)
	r.countUsers()
	for set, l := range map[string]*[]netip.Addr{setClusterIPs: &o.have.ClusterIPs,
		setHairpins: &o.have.Hairpins} {
		for a := range r.index.users[set] {
			if own[set][a] {
				*l = append(*l, a)
			}
		}
	}
	return err
}

// countUsers reads how many owners need the addresses that were found.
func (r *reading) countUsers() {
	for _, set := range addressSets {
		for _, e := range r.elems[set] {
			if a, ok := addressIn(r.f, set, *e); ok {
				r.index.users[set][a] = usersOf(*e)
			}
		}
	}
}
