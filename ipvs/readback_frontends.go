package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// readFrontends adds the frontends whose virtual servers agree with their records to the contents,
// with their pools. All other frontends are damage, and so are virtual servers of no frontend;
// drift lists both. A frontend that can have no virtual server is read from its record, and the
// contents may lack its pool.
func (pl *planner) readFrontends(o *observed, c *servicemodel.Contents) (drift []string,
	err error) {
	records := o.companion.records
	keys := slices.SortedFunc(maps.Keys(records), servicemodel.FrontendKey.Compare)
	found := map[servicemodel.PoolID]*servicemodel.Pool{}

	// The virtual servers of a frontend depend on the other frontends, including damaged ones.
	all := servicemodel.Contents{Rules: c.Rules}
	for _, k := range keys {
		all.Frontends = append(all.Frontends, records[k].fe)
		o.findPools(records[k], found)
	}

	addrs := nodePortAddrs(o.addresses.node, c.Rules)
	all.Pools = slices.AppendSeq(o.unheld(addrs, found), maps.Values(found))
	recorded, err := servicemodel.NewTable(all)
	if err != nil {
		return nil, err
	}
	used := map[servicemodel.PoolID]*servicemodel.Pool{}
	unowned := maps.Clone(o.servers)
	for _, k := range keys {
		r := records[k]
		servers := pl.servers(recorded, r, addrs)
		for _, s := range servers {
			key := s.svc.ServiceKey
			delete(unowned, key)
			if have := o.servers[key]; have != nil {
				have.proto = k.Protocol
			}
		}

		damaged, outdated := o.compare(r, recorded, servers)
		if o.unreachable(k) {
			damaged = noIPv6 // so that Check examines the frontend again
		}
		if damaged+outdated != "" {
			o.damage.frontends = append(o.damage.frontends, k)
			drift = append(drift, fmt.Sprintf("frontend %v: %s", k, cmp.Or(damaged, outdated)))
		}

		if damaged != "" {
			continue
		}
		c.Frontends = append(c.Frontends, r.fe)
		for _, id := range poolIDs(r.fe) {
			if p := found[id]; p != nil {
				used[id] = p
			}
		}
	}

	c.Pools = slices.Collect(maps.Values(used))
	o.damage.servers = slices.SortedFunc(maps.Keys(unowned), ipvsnl.ServiceKey.Compare)
	for _, k := range o.damage.servers {
		drift = append(drift, fmt.Sprintf("virtual server %v belongs to no frontend", k))
	}
	return drift, nil
}

// compare returns the differences of the virtual servers of a frontend from the desired ones: from
// the model (damaged), and from the configuration (outdated). Both are empty if nothing differs.
func (o *observed) compare(r *record, recorded *servicemodel.Table,
	servers []*server) (damaged, outdated string) {
	for _, id := range poolIDs(r.fe) {
		if recorded.Pool(id) == nil {
			damaged = "no destination"
		}
	}

	for _, s := range servers {
		key := s.svc.ServiceKey
		if have := o.servers[key]; have == nil {
			damaged = fmt.Sprintf("virtual server %v is missing", key)
		} else if !have.holds(s) {
			damaged = fmt.Sprintf("virtual server %v is not as it should be", key)
		} else if have.svc != s.svc {
			outdated = fmt.Sprintf("virtual server %v is not as configured", key)
		}
	}

	return damaged, outdated
}

// findPools adds the pools in the virtual servers of a frontend to found.
func (o *observed) findPools(r *record, found map[servicemodel.PoolID]*servicemodel.Pool) {
	note := func(v servicemodel.Verdict, k ipvsnl.ServiceKey) {
		id, ok := r.fe.Pool(v)
		if s := o.servers[k]; ok && found[id] == nil && s != nil {
			if p := s.pool(id); p != nil {
				found[id] = p
			}
		}
	}

	main := mainVerdict(r.fe)
	addressServices(r.fe.Key, o.addresses.node, o.recorded,
		func(k ipvsnl.ServiceKey) { note(main, k) })
	if r.at != nil {
		note(main, markService(r.fe.Key, r.at.mark))
	}
	if r.mark != 0 {
		note(r.fe.Internal, markService(r.fe.Key, r.mark))
	}
}

// mainVerdict is the verdict for the virtual servers at a frontend's address: see [pools].
func mainVerdict(fe *servicemodel.Frontend) servicemodel.Verdict {
	if fe.External.Balances() {
		return fe.External
	}
	return fe.Internal
}

// recorded reports whether the companion has a frontend.
func (o *observed) recorded(k servicemodel.FrontendKey) bool {
	return o.companion.records[k] != nil
}

// unheld returns, without slots, the pools that were not found because IPVS cannot store them: no
// address has a virtual server for their node ports.
func (o *observed) unheld(addrs []netip.Addr,
	found map[servicemodel.PoolID]*servicemodel.Pool) []*servicemodel.Pool {
	empty := map[servicemodel.PoolID]*servicemodel.Pool{}
	for k, r := range o.companion.records {
		id, balances := r.fe.Pool(mainVerdict(r.fe))
		held := !balances || found[id] != nil || r.at != nil
		addressServices(k, addrs, o.recorded, func(ipvsnl.ServiceKey) { held = true })
		if !held {
			empty[id] = &servicemodel.Pool{ID: id}
		}
	}

	return slices.Collect(maps.Values(empty))
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
