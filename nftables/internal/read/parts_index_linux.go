package read

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// ownerReading reads the parts of owners in one table, through the index of owners.
type ownerReading struct {
	*Parts
	r *Reading
	// keys are the frontends whose elements belong to the owners: the frontends in the index, and
	// wanted frontends that no other owner has.
	keys []servicemodel.FrontendKey
	// others are the frontends of other owners that this reading needs.
	others []*servicemodel.Frontend
	// have is the meaning of the owners' elements in the model.
	have servicemodel.Contents
}

// readParts reads the owners' objects from a table, and the owners of the wanted objects, in this
// order:
//
//  1. The index names the owners' frontends.
//  2. The comments of these frontends, and of the wanted ones, name their owners and service ports.
//  3. Other owners may have ranges with ports of the owners' ranges. [dataplane.Flows] needs the
//     frontends of other owners with such a port, or with the number of a UDP node port.
//  4. The sets of a frontend show the number of its slots.
//  5. With their slots, the frontends and pools are known.
//  6. Some of their endpoints are hairpins of the owners.
//  7. Other owners may share the addresses.
func (p *Parts) readParts(ctx context.Context, r *Reading, c *servicemodel.Contents) error {
	o := &ownerReading{Parts: p, r: r}
	err := r.run(ctx, []pass{
		{"ask the index for frontends", o.queryIndex},
		{"ask for the owners of frontends", o.queryFrontends},
		{"dump frontends with the same ports", o.dumpBeside},
		{"ask for the sets of frontends", o.queryMembers},
		{"ask for slots", o.reader.querying(o.r.moreSlots)},
		{"ask for hairpins", o.queryHairpins},
		{"ask for addresses", o.queryAddresses},
	})
	if err != nil {
		return err
	}
	c.Frontends = slices.Concat(c.Frontends, o.have.Frontends, o.others)
	c.Pools = append(c.Pools, o.have.Pools...)
	c.ClusterIPs = append(c.ClusterIPs, o.have.ClusterIPs...)
	c.Hairpins = append(c.Hairpins, o.have.Hairpins...)
	return nil
}

// indexWindow is the number of frontends of an owner that the first request asks for.
const indexWindow = 4

// queryIndex reads the owners' frontends from the index, which numbers them from 0 on.
func (o *ownerReading) queryIndex(ctx context.Context, r *Reading) error {
	have, open := r.Index.Frontends, o.Owners
	for from, to := 0, indexWindow; len(open) > 0; from, to = to, 2*to {
		err := o.reader.querying(func(query queryFunc) {
			for _, owner := range open {
				for n := from; n < to; n++ {
					query(form.SetOwnerFrontends, form.OwnerIDOf(owner).Number(n))
					if r.Shape.Has(form.Ranges | form.NodeRanges) {
						query(form.SetOwnerRanges, form.OwnerIDOf(owner).Number(n))
					}
				}
			}
		})(ctx, r)
		if err != nil {
			return err
		}
		for _, owner := range open {
			for n := from; n < to; n++ {
				if key, ok := r.indexed(owner, n); ok {
					have[owner] = append(have[owner], key)
				}
			}
		}

		open = slices.DeleteFunc(slices.Clone(open), func(owner string) bool {
			return len(have[owner]) < to
		})
	}

	return nil
}

// indexed returns the owner's n-th frontend in the index.
func (r *Reading) indexed(owner string, n int) (key servicemodel.FrontendKey, ok bool) {
	for set, k := range map[string]*form.Kind{form.SetOwnerFrontends: form.KindService,
		form.SetOwnerRanges: form.KindRange} {
		if e := r.Elems[set][string(form.OwnerIDOf(owner).Number(n))]; e != nil {
			rd := nft.Reader{Bytes: e.Data}
			key, ok = k.ReadKey(&rd, r.Family), true
		}
	}

	return key, ok
}

// queryFrontends asks for the owners' frontends and for the wanted frontends.
func (o *ownerReading) queryFrontends(ctx context.Context, r *Reading) error {
	for _, owner := range o.Owners {
		o.keys = append(o.keys, r.Index.Frontends[owner]...)
	}
	for fe := range form.FrontendsOf(o.want, r.Family) {
		o.keys = append(o.keys, fe.Key)
	}
	slices.SortFunc(o.keys, servicemodel.FrontendKey.Compare)
	o.keys = slices.Compact(o.keys)
	err := o.reader.querying(func(query queryFunc) {
		for _, key := range o.keys {
			query(form.KindOf(key).Registry, nft.AppendFrontend(nil, key))
		}
	})(ctx, r)
	o.keys = slices.DeleteFunc(o.keys, func(key servicemodel.FrontendKey) bool {
		in, at := r.Elems[form.KindOf(key).Registry], string(nft.AppendFrontend(nil, key))
		if in[at] == nil || !o.isOthers(key, *in[at]) {
			return false
		}
		delete(in, at)
		return true
	})
	return err
}

// isOthers reports whether an element of a registry is a frontend of another owner, and if so adds
// the frontend to o.others.
func (o *ownerReading) isOthers(key servicemodel.FrontendKey, e nft.Elem) bool {
	fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
	if err != nil || slices.Contains(o.Owners, fe.Service.Name.Namespace) {
		return false
	}
	o.others = append(o.others, fe)
	return true
}

// dumpBeside reads the frontends with the same number as a UDP node port, or one of a range of
// these. [dataplane.Flows] needs these frontends to distinguish their flows from flows to the node
// port. It also reads the ranges at the owners' addresses, and the frontends at the ports of the
// owners' ranges: these ports do not belong to the range, and ranges at an address share elements.
func (o *ownerReading) dumpBeside(ctx context.Context, r *Reading) error {
	ports, nodeRanges := o.nodePorts()
	own, ranges := o.byAddress()
	beside := func(key servicemodel.FrontendKey) bool {
		at := own[key.Addr]
		return key.EndPort != 0 && at != nil || inRange(at, key) ||
			key.Protocol == servicemodel.UDP &&
				(key.EndPort == 0 && ports[key.Port] || inRange(nodeRanges, key))
	}

	for _, k := range r.Shape.Kinds() {
		if k == form.KindNodePort && len(nodeRanges) == 0 ||
			k == form.KindService && !ranges && len(ports) == 0 {
			continue
		}
		err := o.reader.DumpSet(ctx, r, k.Registry, func(e nft.Elem) {
			rd := nft.Reader{Bytes: e.Key}
			if key := k.ReadKey(&rd, r.Family); beside(key) {
				o.isOthers(key, e)
			}
		})
		if err != nil {
			return err
		}
	}

	o.sortOthers()
	return nil
}

// nodePorts returns the UDP node ports of the owners, and their ranges of node ports.
func (o *ownerReading) nodePorts() (udp map[uint16]bool, ranges []servicemodel.FrontendKey) {
	udp = map[uint16]bool{}
	for _, key := range o.keys {
		switch {
		case form.KindOf(key) == form.KindNodeRange:
			ranges = append(ranges, key)
		case key.NodePort() && key.Protocol == servicemodel.UDP:
			udp[key.Port] = true
		}
	}

	return udp, ranges
}

// inRange reports whether one of the frontends is a range that has a port in common with a key.
func inRange(l []servicemodel.FrontendKey, key servicemodel.FrontendKey) bool {
	return slices.ContainsFunc(l, func(k servicemodel.FrontendKey) bool {
		return k.EndPort != 0 && k.Protocol == key.Protocol && k.Port <= key.LastPort() &&
			key.Port <= k.EndPort
	})
}

// byAddress returns the frontends of the owners, and the wanted ones, by address, and whether a
// range is among them. Ranges of node ports count only with UDP, because the others need no
// frontends at addresses.
func (o *ownerReading) byAddress() (own map[netip.Addr][]servicemodel.FrontendKey, ranges bool) {
	l := slices.Clone(o.keys)
	for _, fe := range o.others { // these have wanted keys
		l = append(l, fe.Key)
	}

	own = map[netip.Addr][]servicemodel.FrontendKey{}
	for _, key := range l {
		own[key.Addr] = append(own[key.Addr], key)
		ranges = ranges || key.EndPort != 0 &&
			(!key.NodePort() || key.Protocol == servicemodel.UDP)
	}

	return own, ranges
}

// sortOthers sorts the frontends of other owners, each once, and adds the ranges to r.beside.
func (o *ownerReading) sortOthers() {
	slices.SortFunc(o.others, func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	o.others = slices.CompactFunc(o.others,
		func(a, b *servicemodel.Frontend) bool { return a.Key == b.Key })
	for _, fe := range o.others {
		if fe.Key.EndPort != 0 {
			o.r.beside = append(o.r.beside, fe)
		}
	}
}

// queryMembers asks for the frontends in the sets of memberships, and for the elements of ranges.
// Sets whose keys have more fields than a frontend are dumped. The source ranges are dumped only if
// a frontend is restricted.
func (o *ownerReading) queryMembers(ctx context.Context, r *Reading) error {
	own, dumped := map[servicemodel.FrontendKey]bool{}, map[string]*form.Kind{}
	for _, key := range o.keys {
		own[key] = true
	}
	err := o.reader.querying(func(query queryFunc) {
		for _, k := range r.Shape.Kinds() {
			sets := k.Memberships(r.Family, &r.Shape)
			if k.HasAddress() {
				sets = append(sets, &nft.Set{Name: k.SetRestricted()})
			}
			for _, set := range sets {
				if len(set.Key) > len(k.Key(r.Family)) {
					dumped[set.Name] = k
					continue
				}

				for _, key := range o.keys {
					if form.KindOf(key) == k {
						query(set.Name, nft.AppendFrontend(nil, key))
					}
				}
			}
		}

		for _, key := range o.keys {
			o.queryRange(key, query)
		}
	})(ctx, r)
	for _, k := range []*form.Kind{form.KindService, form.KindRange} {
		if len(r.Elems[k.SetRestricted()]) > 0 {
			dumped[k.SetSources()] = k
		}
	}

	for _, set := range slices.Sorted(maps.Keys(dumped)) {
		if err != nil {
			break
		}
		err = o.reader.DumpSet(ctx, r, set, func(e nft.Elem) {
			rd := nft.Reader{Bytes: e.Key}
			if own[dumped[set].ReadKey(&rd, r.Family)] {
				r.Add(set, e)
			}
		})
	}

	return err
}

// queryRange asks for the elements that send packets to a range, and for the range's port.
func (o *ownerReading) queryRange(key servicemodel.FrontendKey, query queryFunc) {
	if key.EndPort == 0 {
		return
	}
	for b := range key.Blocks() {
		query(form.BlockMap(form.KindOf(key), b.Bits), nft.AppendBlock(nil, b.First, key))
	}
	if !key.NodePort() {
		query(form.SetRangeAddresses, nft.AppendAddr(nil, key.Addr))
	}
	prefix, frontend := form.KindOf(key).Prefix, nft.AppendFrontend(nil, key)
	for _, set := range []string{form.SetToPort, form.SetPorts} {
		query(prefix+set, frontend)
	}
}

// queryHairpins interprets all elements, and asks which endpoints are hairpins of their owners.
func (o *ownerReading) queryHairpins(ctx context.Context, r *Reading) error {
	r.Interpret(&o.have)
	err := o.reader.querying(func(query queryFunc) {
		for _, p := range o.have.Pools {
			for _, s := range p.Slots {
				owner := form.OwnerIDOf(p.ID.Service.Name.Namespace)
				query(form.SetOwnerHairpins, owner.Hairpin(s.Endpoint.Addr()))
			}
		}
	})(ctx, r)
	for _, p := range o.have.Pools {
		owner := p.ID.Service.Name.Namespace
		for _, s := range p.Slots {
			a := s.Endpoint.Addr()
			if r.Elems[form.SetOwnerHairpins][string(form.OwnerIDOf(owner).Hairpin(a))] == nil {
				continue
			}
			if r.Index.Hairpins[owner] == nil {
				r.Index.Hairpins[owner] = map[netip.Addr]bool{}
			}
			r.Index.Hairpins[owner][a] = true
		}
	}

	return err
}

// queryAddresses asks for the owners' addresses and for the wanted ones: whether they belong to the
// owners, and how many owners need them.
func (o *ownerReading) queryAddresses(ctx context.Context, r *Reading) error {
	own := map[string]map[netip.Addr]bool{form.SetClusterIPs: {}, form.SetHairpins: {}}
	for _, fe := range o.have.Frontends {
		if fe.Kind == servicemodel.ClusterIP {
			own[form.SetClusterIPs][fe.Key.Addr] = true
		}
	}

	for _, l := range r.Index.Hairpins {
		maps.Copy(own[form.SetHairpins], l)
	}
	err := o.reader.querying(func(query queryFunc) {
		for _, set := range form.AddressSets {
			asked := maps.Clone(own[set])
			for a := range form.AddressesOf(o.want, r.Family, set) {
				asked[a] = true
			}
			for a := range asked {
				query(set, form.AppendAddrKey(nil, set, a))
			}
		}
	})(ctx, r)
	r.countUsers()
	for set, l := range map[string]*[]netip.Addr{form.SetClusterIPs: &o.have.ClusterIPs,
		form.SetHairpins: &o.have.Hairpins} {
		for a := range r.Index.Users[set] {
			if own[set][a] {
				*l = append(*l, a)
			}
		}
	}

	return err
}
