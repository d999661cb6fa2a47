package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// adopt makes a table of the records and the virtual servers that are as they say.
func (b *Backend) adopt(o *dataplane.Observation) (*dataplane.Observation, error) {
	c := servicemodel.Contents{Rules: b.comp.rules, ClusterIPs: b.comp.clusterIPs,
		Hairpins: b.comp.hairpins}
	if err := b.judge(o, &c); err != nil {
		return nil, err
	}
	b.noteMarks()
	if addrs := nodePortAddrs(b.found.node, c.Rules); !slices.Equal(addrs, b.comp.addrs) &&
		len(b.comp.records) > 0 {
		o.Drift = append(o.Drift, "the node's addresses have changed")
	}
	unsettled, err := b.unsettled()
	if err != nil {
		return nil, err
	}
	if b.settled = len(unsettled) == 0; len(b.comp.records) > 0 {
		o.Drift = append(o.Drift, unsettled...)
	}
	left, err := b.net.made()
	if err != nil {
		return nil, err
	}
	o.Drift = append(o.Drift, b.adoptDevice(slices.DeleteFunc(left, func(name string) bool {
		return name == b.cfg.Device
	}))...)
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, err
	}
	b.table, b.observed, o.Table = t, true, t
	return o, nil
}

// judge puts the frontends that are as their records say, with their pools, into the contents; the
// others are drift, and dirty.
func (b *Backend) judge(o *dataplane.Observation, c *servicemodel.Contents) error {
	keys := slices.SortedFunc(maps.Keys(b.comp.records), servicemodel.FrontendKey.Compare)
	found := map[servicemodel.PoolID]*servicemodel.Pool{}
	// What is claimed: first as if all were there.
	claims := servicemodel.Contents{Rules: c.Rules}
	for _, k := range keys {
		claims.Frontends = append(claims.Frontends, b.comp.records[k].fe)
		b.findPools(b.comp.records[k], found)
	}
	claims.Pools = slices.Collect(maps.Values(found))
	claimed, err := servicemodel.NewTable(claims)
	if err != nil {
		return err
	}
	b.dirty, b.owned = map[servicemodel.FrontendKey]bool{},
		map[servicemodel.FrontendKey][]ipvsnl.ServiceKey{}
	addrs := nodePortAddrs(b.found.node, c.Rules)
	used := map[servicemodel.PoolID]*servicemodel.Pool{}
	mine := map[ipvsnl.ServiceKey]bool{}
	for _, k := range keys {
		r := b.comp.records[k]
		wrong, other := b.wrong(r, claimed, addrs, mine)
		if wrong+other != "" {
			b.dirty[k] = true
			o.Drift = append(o.Drift, fmt.Sprintf("frontend %v: %s", k, cmp.Or(wrong, other)))
		}
		if wrong != "" {
			continue
		}
		c.Frontends = append(c.Frontends, r.fe)
		for _, id := range poolIDs(r.fe) {
			used[id] = found[id]
		}
	}
	c.Pools = slices.Collect(maps.Values(used))
	b.sortHeld(mine)
	for _, k := range b.stale {
		o.Drift = append(o.Drift, fmt.Sprintf("virtual server %v belongs to no frontend", k))
	}
	return nil
}

// wrong says in what the virtual servers of a frontend are not as they should be; nothing if they
// are. It notes which are the frontend's. Those that are as the model says, and were made with
// another configuration, are other.
func (b *Backend) wrong(r *record, claimed *servicemodel.Table, addrs []netip.Addr,
	mine map[ipvsnl.ServiceKey]bool) (wrong, other string) {
	for _, id := range poolIDs(r.fe) {
		if claimed.Pool(id) == nil {
			wrong = "no destination"
		}
	}
	for _, s := range b.servers(claimed, r.fe, addrs, r.mark) {
		key := s.svc.ServiceKey
		mine[key] = true
		if b.held[key] != nil {
			b.owned[r.fe.Key] = append(b.owned[r.fe.Key], key)
			b.held[key].proto = r.fe.Key.Protocol
		}
		if !b.held[key].holds(s) {
			wrong = fmt.Sprintf("virtual server %v is not as it should be", key)
		} else if b.held[key].svc != s.svc {
			other = fmt.Sprintf("virtual server %v is not as configured", key)
		}
	}
	return wrong, other
}

// sortHeld tells the virtual servers that belong to no frontend from those that do, and notes which
// destinations of these are draining: since when, as far as this process knows.
func (b *Backend) sortHeld(mine map[ipvsnl.ServiceKey]bool) {
	now, since := time.Now(), b.leaving
	b.stale, b.leaving = nil, map[drainKey]time.Time{}
	for k, s := range b.held {
		if !mine[k] {
			b.stale = append(b.stale, k)
			continue
		}
		for d, dest := range s.dests {
			if dest.Weight != 0 {
				continue
			}
			dk := drainKey{k, d}
			b.leaving[dk] = now
			if t, ok := since[dk]; ok {
				b.leaving[dk] = t
			}
		}
	}
	slices.SortFunc(b.stale, ipvsnl.ServiceKey.Compare)
}

// noteMarks notes the firewall marks that are taken.
func (b *Backend) noteMarks() {
	b.marks = map[uint32]bool{}
	for _, r := range b.comp.records {
		b.marks[r.mark] = true
	}
	for k := range b.foreign {
		b.marks[k.FWMark] = true
	}
	delete(b.marks, 0)
}

func poolIDs(fe *servicemodel.Frontend) []servicemodel.PoolID {
	var l []servicemodel.PoolID
	for _, v := range []servicemodel.Verdict{fe.Internal, fe.External} {
		if id, ok := fe.Pool(v); ok && !slices.Contains(l, id) {
			l = append(l, id)
		}
	}
	return l
}

// findPools notes the pools that a frontend's virtual servers show and that are not known yet.
func (b *Backend) findPools(r *record, found map[servicemodel.PoolID]*servicemodel.Pool) {
	note := func(v servicemodel.Verdict, k ipvsnl.ServiceKey) {
		id, ok := r.fe.Pool(v)
		if s := b.held[k]; ok && found[id] == nil && s != nil {
			if p := s.pool(id); p != nil {
				found[id] = p
			}
		}
	}
	main := r.fe.Internal
	if r.fe.External != r.fe.Internal && r.fe.External.Balances() {
		main = r.fe.External
	}
	k := r.fe.Key
	if k.NodePort() {
		for _, a := range b.found.node {
			if a.Is4() == k.Addr.Is4() &&
				b.comp.records[servicemodel.FrontendKey{Addr: a, Protocol: k.Protocol,
					Port: k.Port}] == nil {
				note(main, ipvsnl.AddressService(ipvsnl.Protocol(k.Protocol),
					netip.AddrPortFrom(a, k.Port)))
			}
		}
	} else {
		note(main, ipvsnl.AddressService(ipvsnl.Protocol(k.Protocol), k.AddrPort()))
	}
	if r.mark != 0 {
		f := ipvsnl.FamilyIPv4
		if k.Addr.Is6() {
			f = ipvsnl.FamilyIPv6
		}
		note(r.fe.Internal, ipvsnl.MarkService(f, r.mark))
	}
}
