package ipvs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// methods are the forwarding methods. NAT is the zero value of both types.
var methods = map[servicemodel.Forwarding]ipvsnl.ForwardingMethod{
	servicemodel.ForwardDirect: ipvsnl.ForwardDirectRoute,
	servicemodel.ForwardTunnel: ipvsnl.ForwardTunnel}

// server is a virtual server of ours with its destinations. Destinations of weight 0 are draining.
type server struct {
	svc   ipvsnl.Service
	proto servicemodel.Protocol
	// prefix says that the netmask of persistence is the frontend's, and not the configuration's.
	prefix bool
	dests  destinations
}

type destinations map[ipvsnl.DestinationKey]ipvsnl.Destination

type poolDestinations struct {
	pool    *servicemodel.Pool
	entries int // of the scheduler's table, 0 without
	dests   destinations
}

// pools returns the pool of the virtual servers at a frontend's address, and the pool of the
// virtual server by mark, if pods and the host have a different pool. Either may be nil.
func pools(t *servicemodel.Table, fe *servicemodel.Frontend) (main, alt *servicemodel.Pool) {
	internal, external := t.PoolsOf(fe)
	switch {
	case external == nil:
		return internal, nil
	case internal == nil:
		return external, nil
	}

	return external, internal
}

// servers returns the virtual servers of a frontend. A node port has a virtual server at each of
// the addresses, except where a service has the address and port. A range has one by mark.
func (pl *planner) servers(t *servicemodel.Table, r *record, addrs []netip.Addr) []*server {
	fe := r.fe
	main, alt := pools(t, fe)
	var l []*server
	taken := func(k servicemodel.FrontendKey) bool { return t.Frontend(k) != nil }
	addressServices(fe.Key, addrs, taken, func(k ipvsnl.ServiceKey) {
		l = append(l, pl.server(k, fe, main, false))
	})
	if r.at != nil {
		l = append(l, pl.server(markService(fe.Key, r.at.mark), fe, main, true))
	}
	if alt != nil && r.mark != 0 {
		l = append(l, pl.server(markService(fe.Key, r.mark), fe, alt, true))
	}
	return l
}

// addressServices calls to with the key of each virtual server by address of a frontend. A node
// port has virtual servers at all addresses of its family, except where another frontend has the
// port. A range has none.
func addressServices(k servicemodel.FrontendKey, addrs []netip.Addr,
	taken func(servicemodel.FrontendKey) bool, to func(ipvsnl.ServiceKey)) {
	proto := ipvsnl.Protocol(k.Protocol)
	if k.EndPort != 0 {
		return
	}
	if !k.NodePort() {
		to(ipvsnl.AddressService(proto, netip.AddrPortFrom(k.Addr, k.Port)))
		return
	}

	for _, a := range addrs {
		at := servicemodel.FrontendKey{Addr: a, Protocol: k.Protocol, Port: k.Port}
		if a.Is4() == k.Addr.Is4() && !taken(at) {
			to(ipvsnl.AddressService(proto, netip.AddrPortFrom(at.Addr, at.Port)))
		}
	}
}

// markService is the key of the virtual server by firewall mark of a frontend.
func markService(k servicemodel.FrontendKey, mark uint32) ipvsnl.ServiceKey {
	f := ipvsnl.FamilyIPv4
	if k.Addr.Is6() {
		f = ipvsnl.FamilyIPv6
	}
	return ipvsnl.MarkService(f, mark)
}

// server returns the virtual server with a key, for a pool of a frontend. The pool may be nil.
func (pl *planner) server(k ipvsnl.ServiceKey, fe *servicemodel.Frontend, p *servicemodel.Pool,
	byMark bool) *server {
	s := &server{svc: ipvsnl.Service{ServiceKey: k, Flags: ipvsnl.ServiceFlags(pl.instance)},
		proto: fe.Key.Protocol,
		dests: destinations{}}
	want := servicemodel.SchedulerDefault
	if p != nil {
		want = p.Scheduler
	}
	s.svc.Flags |= askedFlags(want)
	scheduler := cmp.Or(want, pl.cfg.Scheduler)
	switch {
	case fe.Affinity > 0 && byMark && !keepsPorts(fe, p):
		// Persistence by mark keeps the port that the client addressed (ip_vs_sched_persist), so a
		// hash of the client's address chooses the endpoint instead.
		scheduler = servicemodel.Maglev + "+fallback"
	case fe.Affinity > 0:
		s.svc.Flags |= ipvsnl.FlagPersistent
		s.svc.Timeout = fe.Affinity
		s.prefix = fe.AffinityBits > 0
		bits := pl.cfg.AffinityMask4
		if k.Family == ipvsnl.FamilyIPv6 {
			bits = pl.cfg.AffinityMask6
		}
		if bits = cmp.Or(int(fe.AffinityBits), bits); bits > 0 { // otherwise the whole address
			s.svc.Netmask = ipvsnl.PrefixNetmask(k.Family, bits)
		}
	}

	name, _, _ := scheduler.Split()
	if name == servicemodel.SourceHash && p != nil && len(p.Slots) > hashTables[name] {
		scheduler, name = servicemodel.Maglev+scheduler[len(name):], servicemodel.Maglev
	}
	s.svc.Scheduler = string(name)
	s.svc.Flags |= optionFlags(scheduler, ipvsnl.FlagHashPort, ipvsnl.FlagFallback)
	if p == nil {
		return s
	}
	s.dests = pl.destinations(p, hashTables[name])
	return s
}

// destinations returns the destinations for a pool. If the scheduler has a table, entries is its
// size. The virtual servers of a pool share them, and must not change them.
func (pl *planner) destinations(p *servicemodel.Pool, entries int) destinations {
	for i := range pl.pools {
		if d := &pl.pools[i]; d.pool == p && d.entries == entries {
			return d.dests
		}
	}

	reduce := reduction(p, entries)
	dests := make(destinations, len(p.Slots))
	for _, slot := range p.Slots {
		k := ipvsnl.DestinationKey{Addr: slot.Endpoint.Addr(), Port: slot.Endpoint.Port()}
		d := ipvsnl.Destination{DestinationKey: k, Weight: uint32(slot.Weight),
			Forward: methods[p.Forwarding]}
		if reduce != nil {
			d.UpperThreshold, d.LowerThreshold = ipvsnl.MaxWeight, d.Weight
			d.Weight = uint32(reduce(slot.Weight))
		}

		dests[k] = d
	}

	pl.pools[0], pl.pools[1] = pl.pools[1], poolDestinations{p, entries, dests}
	return dests
}

// hashTables are the sizes of the kernel's tables of schedulers that hash
// (CONFIG_IP_VS_SH_TAB_BITS, CONFIG_IP_VS_MH_TAB_INDEX). In their order, destinations get as many
// entries as their weight, and the last destinations get none if the table is full
// (ip_vs_sh_reassign, ip_vs_mh_populate). So weights that need a larger table are reduced. The
// lower threshold then stores the weight of the model. With an upper threshold that no destination
// reaches, the lower threshold has no effect. If there are too many destinations for sh, the table
// of mh is used.
var hashTables = map[servicemodel.Scheduler]int{servicemodel.SourceHash: 1 << 8,
	servicemodel.Maglev: 4093}

// reduction returns a function that reduces the weights of a pool, so that their sum is the number
// of entries of a table, or a little less. It returns nil if the sum is not greater anyway.
func reduction(p *servicemodel.Pool, entries int) func(weight uint16) int {
	sum := 0
	for _, s := range p.Slots {
		sum += int(s.Weight)
	}
	if entries == 0 || sum <= entries {
		return nil
	}
	to := func(units int, weight uint16) int { return max(int(weight)*units/sum, 1) }
	surplus := sort.Search(entries, func(surplus int) bool {
		n := 0
		for _, s := range p.Slots {
			n += to(entries-surplus, s.Weight)
		}
		return n <= entries
	})
	return func(weight uint16) int { return to(entries-surplus, weight) }
}

// pool returns the pool in a virtual server: its destinations in use, or nil if there are none.
func (s *server) pool(id servicemodel.PoolID) *servicemodel.Pool {
	p := &servicemodel.Pool{ID: id, Scheduler: askedScheduler(s.svc.Flags)}
	for _, k := range sortedDests(s.dests) {
		d := s.dests[k]
		weight := cmp.Or(d.LowerThreshold, d.Weight)
		if d.Weight == 0 || weight > 0xffff {
			continue
		}
		for f, m := range methods {
			if m == d.Forward {
				p.Forwarding = f
			}
		}

		p.Slots = append(p.Slots, servicemodel.Slot{Endpoint: netip.AddrPortFrom(k.Addr, k.Port),
			Weight: uint16(weight)})
	}

	if p.Slots == nil {
		return nil
	}
	return p
}

// withConfigOf returns the virtual server of s with want's settings from the configuration. The
// flags say whether both were made for the same scheduler of the model.
func (s *server) withConfigOf(want *server) ipvsnl.Service {
	svc := s.svc
	if svc.Flags&^schedulerOptions == want.svc.Flags&^schedulerOptions {
		svc.Scheduler, svc.Flags = want.svc.Scheduler, want.svc.Flags
		if !want.prefix {
			svc.Netmask = want.svc.Netmask
		}
	}

	return svc
}

func sortedDests(m destinations) []ipvsnl.DestinationKey {
	return slices.SortedFunc(maps.Keys(m), ipvsnl.DestinationKey.Compare)
}

// otherDests returns, in order, the keys of the destinations in m that than lacks or that differ
// there.
func otherDests(m, than destinations) (keys []ipvsnl.DestinationKey) {
	for k, d := range m {
		if other, ok := than[k]; !ok || other != d {
			keys = append(keys, k)
		}
	}

	slices.SortFunc(keys, ipvsnl.DestinationKey.Compare)
	return keys
}

// holds reports whether s agrees with want according to the model. It ignores draining destinations
// and settings from the configuration.
func (s *server) holds(want *server) bool {
	if s == nil || s.withConfigOf(want) != want.svc {
		return false
	}
	n := 0
	for k, d := range s.dests {
		if d.Weight == 0 {
			continue
		}
		n++
		if want.dests[k] != d {
			return false
		}
	}

	return n == len(want.dests)
}
