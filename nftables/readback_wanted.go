package nftables

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file has the answers of a reading about the wanted table. It combines both into the table in
// the kernel.

// isLarge reports whether a set grows with the endpoints rather than with the services.
func isLarge(name string) bool {
	return strings.HasSuffix(name, setEndpoints) || name == setHairpins
}

// isRead reports whether the elements of a set describe services.
func isRead(name string) bool {
	return !isAffinityMap(name) && !isOwners(name) && !isVersion(name) && name != setSettings
}

// keyOf returns the frontend that an element of a set belongs to, or false if it belongs to none.
func (r *reading) keyOf(set *nft.Set, e nft.Elem) (servicemodel.FrontendKey, bool) {
	nodePort := set.Key[0] == nft.FieldProto
	n := 8
	if !nodePort {
		n += r.f.AddrLen
	}
	if len(set.Key) < 2 || set.Name == setHairpins || len(e.Key) < n {
		return servicemodel.FrontendKey{}, false
	}
	rd := nft.Reader{Bytes: e.Key[:n]}
	return rd.Frontend(r.f.Any, nodePort), true
}

// addressIn decodes an element of a set of addresses.
func addressIn(f *nft.Family, set string, e nft.Elem) (netip.Addr, bool) {
	r := nft.Reader{Bytes: e.Key}
	a := r.Addr(f.AddrLen)
	if set == setHairpins && r.Addr(f.AddrLen) != a {
		return a, false
	}
	return a, r.Done()
}

// contest finds the service ports that count as whole although elements are left over that concern
// them: more elements of their frontends, or frontends whose comment names the same service port.
// They no longer count as whole. All their elements, which are as wanted, are left over, too.
func (r *reading) contest(context.Context, *reading) error {
	if r.want == nil {
		return nil
	}
	gone := map[servicemodel.PortName]bool{}
	for _, o := range r.gone {
		if o.frontends != nil {
			gone[o.frontends[0].Service] = true
		}
	}
	var contested []object
	contest := func(port servicemodel.PortName) {
		if o := portOf(r.f, r.want, port); !gone[port] && len(o.frontends) > 0 {
			gone[port] = true
			contested = append(contested, o)
		}
	}
	for name, elems := range r.elems {
		set := r.sets[name]
		if set == nil || !isRead(name) {
			continue
		}
		registry := name == kindService.registry || name == kindNodePort.registry
		for _, e := range elems {
			key, ok := r.keyOf(set, *e)
			if fe := r.want.Frontend(key); ok && fe != nil {
				contest(fe.Service)
			}
			if !registry {
				continue
			}
			fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
			if err == nil {
				contest(fe.Service)
			}
		}
	}
	for _, o := range contested {
		o.elements(r.w, r.want, func(set string, e nft.Elem) { r.add(set, e) })
	}
	r.gone = append(r.gone, contested...)
	return nil
}

// asks asks for an element by set and key.
type asks func(set string, key []byte)

// moreSlots asks for the slots of the frontends that are left over: as many slots as a pool of
// their class can have, or as the chain of their pool's scheduler draws.
func (r *reading) moreSlots(ask asks) {
	for _, k := range kinds {
		for key := range r.elems[k.registry] {
			for outside, over := range []string{setOver, setExternalOver} {
				l := r.leafOf(k, outside == 1, over, key)
				set := l.slotMap()
				for slot := 0; r.has(set) && slot < l.slots; slot++ {
					slotKey := nft.AppendSlot([]byte(key), slot)
					if r.elems[set][string(slotKey)] == nil {
						ask(set, slotKey)
					}
				}
			}
		}
	}
}

// leafOf says which slots a frontend may have, by the elements that were found.
func (r *reading) leafOf(k *kind, outside bool, over, key string) leaf {
	l := leaf{kind: k, outside: outside, slots: most(0)}
	for than := range allClasses - 1 {
		if r.elems[k.prefix+overName(over, than)][key] != nil {
			l.slots = most(than + 1)
		}
	}
	if e := r.elems[prefixOf(k, outside)+setScheduled][key]; e != nil {
		if to, ok := parseLeaf(string(e.Data)); ok && to.kind == k && to.outside == outside {
			return to
		}
	}
	return l
}

// assemble returns the table in the kernel: the wanted table without the missing objects, and with
// the objects that are left over. It shares memory with the wanted table.
func (s *snapshot) assemble(want *servicemodel.Table, left servicemodel.Contents) (
	*servicemodel.Table, error) {
	if want == nil || !slices.ContainsFunc(s.tables, (*reading).stands) {
		return servicemodel.NewTable(left) // an error is a duplicate key or identity
	}
	c := &servicemodel.ChangeSet{}
	if rules := want.Rules(); !rules.Equal(left.Rules) {
		c.Rules = &servicemodel.Change[servicemodel.Rules]{Old: &rules, New: &left.Rules}
	}
	for _, r := range s.tables {
		if !r.stands() {
			r.gone = slices.Collect(objectsOf(r.f, want))
		}
		if len(r.gone) > 0 {
			r.subtract(want, c)
		}
	}
	if len(left.Frontends)+len(left.Pools)+len(left.ClusterIPs)+len(left.Hairpins) > 0 {
		t, err := servicemodel.NewTable(left)
		if err != nil {
			return nil, err
		}
		more := servicemodel.Diff(nil, t)
		c.Frontends = append(c.Frontends, more.Frontends...)
		c.Pools = append(c.Pools, more.Pools...)
		c.ClusterIPs = append(c.ClusterIPs, more.ClusterIPs...)
		c.Hairpins = append(c.Hairpins, more.Hairpins...)
	}
	for h := range want.HealthChecks() { // the kernel does not hold health checks
		c.Health = append(c.Health, servicemodel.Change[servicemodel.HealthCheck]{Old: &h})
	}
	return want.Apply(c), nil
}

// subtract removes the objects that are not whole from the wanted table.
func (r *reading) subtract(want *servicemodel.Table, c *servicemodel.ChangeSet) {
	addresses := map[string]*[]servicemodel.AddrChange{setClusterIPs: &c.ClusterIPs,
		setHairpins: &c.Hairpins}
	for _, o := range r.gone {
		if o.frontends == nil {
			l := addresses[o.set]
			*l = append(*l, servicemodel.AddrChange{Addr: o.addr})
		}
		for _, fe := range o.frontends {
			c.Frontends = append(c.Frontends, servicemodel.Change[servicemodel.Frontend]{Old: fe})
			internal, external := want.PoolsOf(fe)
			for _, pool := range []*servicemodel.Pool{internal, external} {
				if pool != nil { // all frontends of its service port are gone
					c.Pools = append(c.Pools, servicemodel.Change[servicemodel.Pool]{Old: pool})
				}
			}
		}
	}
}
