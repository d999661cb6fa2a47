package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// readFrontends puts the frontends whose virtual servers are what their records say into the
// contents, with their pools. The others are damage, as are virtual servers of no frontend; the
// drift says so.
func (pl *planner) readFrontends(o *observed, c *servicemodel.Contents,
	want *servicemodel.Table) (drift []string, err error) {
	records := o.companion.records
	keys := slices.SortedFunc(maps.Keys(records), servicemodel.FrontendKey.Compare)
	found := map[servicemodel.PoolID]*servicemodel.Pool{}
	// Which virtual servers a frontend has depends on the other frontends: here all count.
	all := servicemodel.Contents{Rules: c.Rules}
	for _, k := range keys {
		all.Frontends = append(all.Frontends, records[k].fe)
		o.findPools(records[k], found)
	}
	addrs := nodePortAddrs(o.addresses.node, c.Rules)
	if want == nil {
		want = pl.have.table
	}
	assumePools(all.Frontends, addrs, want, found)
	all.Pools = slices.Collect(maps.Values(found))
	recorded, err := servicemodel.NewTable(all)
	if err != nil {
		return nil, err
	}
	used := map[servicemodel.PoolID]*servicemodel.Pool{}
	unowned := maps.Clone(o.servers)
	for _, k := range keys {
		r := records[k]
		servers := pl.servers(recorded, r.fe, addrs, r.mark)
		o.own(k, servers, unowned)
		damaged, outdated := o.compare(r, recorded, servers)
		if damaged+outdated != "" {
			o.damage.frontends = append(o.damage.frontends, k)
			drift = append(drift, fmt.Sprintf("frontend %v: %s", k, cmp.Or(damaged, outdated)))
		}
		if damaged != "" {
			continue
		}
		c.Frontends = append(c.Frontends, r.fe)
		for _, id := range poolIDs(r.fe) {
			used[id] = found[id]
		}
	}
	c.Pools = slices.Collect(maps.Values(used))
	o.damage.servers = slices.SortedFunc(maps.Keys(unowned), ipvsnl.ServiceKey.Compare)
	for _, k := range o.damage.servers {
		drift = append(drift, fmt.Sprintf("virtual server %v belongs to no frontend", k))
	}
	return drift, nil
}

// own notes which of the virtual servers that there are belong to a frontend, and takes them from
// those that belong to none.
func (o *observed) own(k servicemodel.FrontendKey, servers []*server,
	unowned map[ipvsnl.ServiceKey]*server) {
	for _, s := range servers {
		key := s.svc.ServiceKey
		delete(unowned, key)
		if have := o.servers[key]; have != nil {
			have.proto = k.Protocol
			o.index.owned[k] = append(o.index.owned[k], key)
		}
	}
}

// compare returns in what the virtual servers of a frontend differ from those that it should have:
// from what the model says (damaged), and from what the configuration says (outdated). Both are
// empty if they do not.
func (o *observed) compare(r *record, recorded *servicemodel.Table,
	servers []*server) (damaged, outdated string) {
	for _, id := range poolIDs(r.fe) {
		if shared.Of(recorded).Pool(id) == nil {
			damaged = "no destination"
		}
	}
	for _, s := range servers {
		key := s.svc.ServiceKey
		if have := o.servers[key]; !have.holds(s) {
			damaged = fmt.Sprintf("virtual server %v is not as it should be", key)
		} else if have.svc != s.svc {
			outdated = fmt.Sprintf("virtual server %v is not as configured", key)
		}
	}
	return damaged, outdated
}

// findPools adds the pools that the virtual servers of a frontend show to those that are found.
func (o *observed) findPools(r *record, found map[servicemodel.PoolID]*servicemodel.Pool) {
	note := func(v servicemodel.Verdict, k ipvsnl.ServiceKey) {
		id, ok := r.fe.Pool(v)
		if s := o.servers[k]; ok && found[id] == nil && s != nil {
			if p := s.pool(id); p != nil {
				found[id] = p
			}
		}
	}
	main := r.fe.Internal
	if r.fe.External != r.fe.Internal && r.fe.External.Balances() {
		main = r.fe.External
	}
	taken := func(k servicemodel.FrontendKey) bool { return o.companion.records[k] != nil }
	addressServices(r.fe.Key, o.addresses.node, taken, func(k ipvsnl.ServiceKey) { note(main, k) })
	if r.mark != 0 {
		note(r.fe.Internal, markService(r.fe.Key, r.mark))
	}
}

// assumePools adds the pools of node ports in a family of which the node has no address that takes
// them: there is no virtual server that could show them, so they are what is wanted.
func assumePools(frontends []*servicemodel.Frontend, addrs []netip.Addr, want *servicemodel.Table,
	found map[servicemodel.PoolID]*servicemodel.Pool) {
	for _, fe := range frontends {
		has := func(a netip.Addr) bool { return a.Is4() == fe.Key.Addr.Is4() }
		if want == nil || !fe.Key.NodePort() || slices.ContainsFunc(addrs, has) {
			continue
		}
		for _, id := range poolIDs(fe) {
			if p := want.Pool(id); p != nil && found[id] == nil {
				found[id] = p
			}
		}
	}
}

// poolIDs returns the pools that a frontend refers to, each once.
func poolIDs(fe *servicemodel.Frontend) []servicemodel.PoolID {
	var l []servicemodel.PoolID
	for _, v := range []servicemodel.Verdict{fe.Internal, fe.External} {
		if id, ok := fe.Pool(v); ok && !slices.Contains(l, id) {
			l = append(l, id)
		}
	}
	return l
}
