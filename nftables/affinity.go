package nftables

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// sweep is the work left to Settle by all commits since the last sweep ended: which clients must be
// forgotten.
type sweep struct {
	table *servicemodel.Table // what the kernel holds
	of    [len(nft.Families)]familySweep
	// reading is the reading of the maps that is under way, if there is one.
	reading *mapsReading
	// aimed is the table that the forgets were last compared with.
	aimed *servicemodel.Table
	// tries is how often the maps were read without any progress.
	tries int
}

// mapsReading is one reading of all maps of remembered clients, map by map.
type mapsReading struct {
	done time.Time // the kernel was done with the packets of this time when the reading began
	// groups are the groups of maps of each family that the reading began with, and left are the
	// maps that it has not read yet.
	groups [len(nft.Families)][]string
	left   []clientsMap
}

// clientsMap is a map of remembered clients.
type clientsMap struct {
	family, number int
	group          string
}

// allOthers is the key of no frontend.
var allOthers servicemodel.FrontendKey

// familySweep is the part of a sweep in the table of one family.
type familySweep struct {
	// byKey says which clients of each frontend to forget, commit by commit. With the key
	// allOthers it says to forget all clients of all other frontends.
	byKey map[servicemodel.FrontendKey][]*forget
	// learnt is how many packets had been learnt before the last reading, and sure says that the
	// reading saw all entries.
	learnt uint64
	sure   bool
}

func newSweep(t *servicemodel.Table) *sweep {
	s := &sweep{table: t}
	for i := range s.of {
		s.of[i].byKey = map[servicemodel.FrontendKey][]*forget{}
	}
	return s
}

// sweepAll returns a sweep for unknown changes. It keeps a client only if every client may have its
// endpoint.
func sweepAll(t *servicemodel.Table) *sweep {
	s, now := newSweep(t), time.Now()
	for fe := range t.Frontends() {
		if fe.Affinity > 0 {
			s.add(forgetAll(fe), now)
		}
	}
	for i := range s.of {
		s.of[i].byKey[allOthers] = []*forget{{others: true, since: now}}
	}
	return s
}

// after returns the sweep after a plan that was committed now. It includes the work that was left
// before.
func (s *sweep) after(p *plan, now time.Time) *sweep {
	switch {
	case s == nil && p.have.unswept, p.spares(): // nothing tells what the clients were given
		return sweepAll(p.c.New)
	case !p.have.unswept:
		s = newSweep(nil)
	}
	s.table = p.c.New
	for _, f := range p.forget {
		s.add(f, now)
	}
	for i, t := range p.tables {
		if t.program != nil { // its counters begin at zero
			s.of[i].sure = false
		}
	}
	return s
}

// add adds the clients that a commit forgets.
func (s *sweep) add(f forget, now time.Time) {
	key := clientsOf(f.frontend)
	fs := &s.of[nft.FamilyIndex(key.Addr)]
	f.since = now
	fs.byKey[key], s.tries = append(fs.byKey[key], &f), 0
}

// pending calls fn with everything in a family that is left to forget.
func (s *familySweep) pending(fn func(*forget)) {
	for _, list := range s.byKey {
		for _, f := range list {
			fn(f)
		}
	}
}

// drop removes everything in a family that is forgotten.
func (s *sweep) drop(i int, done func(*forget) bool) {
	fs := &s.of[i]
	for key, list := range fs.byKey {
		left := slices.DeleteFunc(list, done)
		if len(left) < len(list) {
			s.tries = 0
		}
		if fs.byKey[key] = left; len(left) == 0 {
			delete(fs.byKey, key)
		}
	}
}

// oldest returns the time of the packets that the next reading must wait for. It returns false if
// nothing is left.
func (s *sweep) oldest() (at time.Time, left bool) {
	for i := range s.of {
		s.of[i].pending(func(f *forget) {
			if !left || f.since.Before(at) {
				at, left = f.since, true
			}
		})
	}
	return at, left
}

// clientsOf returns the key under which the clients of a frontend are forgotten: its own, or for
// the clients of a whole service the service's number, without protocol and port.
func clientsOf(fe *servicemodel.Frontend) servicemodel.FrontendKey {
	if fe.AffinityService {
		f := nft.Families[nft.FamilyIndex(fe.Key.Addr)]
		return servicemodel.FrontendKey{Addr: serviceID(fe.Service.Name, f)}
	}
	return fe.Key
}

// entryOf decodes an entry of an affinity map. Its key has the client's address and those of a
// frontend, or the number of a service.
func entryOf(f *nft.Family, group string, e nft.Elem) (key servicemodel.FrontendKey,
	ep netip.AddrPort, ok bool) {
	r, d := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.Data}
	r.Addr(f.AddrLen)
	if group == groupServices {
		key.Addr, ep = r.Addr(f.AddrLen), netip.AddrPortFrom(d.Addr(f.AddrLen), 0)
	} else {
		key, ep = r.Frontend(f.Any, false), d.Endpoint(f.AddrLen)
	}
	return key, ep, r.Done() && d.Done()
}

// takes reports whether an entry of an affinity map must go, and notes that it was found.
func (s *sweep) takes(f *nft.Family, group string, e nft.Elem) (takes bool) {
	key, ep, ok := entryOf(f, group, e)
	if !ok {
		return false
	}
	fs := &s.of[nft.FamilyIndex(f.Any)]
	list, fe := fs.byKey[key], s.table.Frontend(key)
	if list == nil && fe == nil && group != groupServices { // it can only be a node port's
		key.Addr = f.Any
		list, fe = fs.byKey[key], s.table.Frontend(key)
	}
	if list == nil && (fe == nil || fe.Affinity == 0) {
		list = fs.byKey[allOthers]
	}
	for _, f := range list {
		if f.read && f.takes(ep) {
			takes, f.found = true, true
		}
	}
	return takes
}

// forget says which clients of a frontend must be forgotten because their endpoint may no longer be
// used. These are the clients of endpoints that the frontend lost and has not got back. If others
// is set, these are the clients of all endpoints, except endpoints that every client may have.
type forget struct {
	frontend *servicemodel.Frontend
	lost     [2][]netip.AddrPort // by clients inside and outside
	others   bool
	// now are the endpoints that clients inside and outside may have, if others is set. gone are
	// the lost endpoints that they may not have. For a whole service, an endpoint is an address
	// with port 0.
	now  [2]map[netip.AddrPort]bool
	gone map[netip.AddrPort]bool
	// since is the time of the commit, or of the last deletion of an entry. Packets of that time
	// may bring an entry back.
	since time.Time
	// read says that the last reading looks for the entries in all maps. found says that it found
	// some. clean is how many readings in a row found none, each begun when no packet could bring
	// one back.
	read, found bool
	clean       int
}

// aim compares what is left to forget with the table, unless it did that before.
func (s *sweep) aim() {
	if s.aimed == s.table {
		return
	}
	s.aimed = s.table
	for i := range s.of {
		for _, list := range s.of[i].byKey {
			aim(list, s.table)
		}
	}
}

// aim finds out which endpoints the clients of a frontend, or of a whole service, may have with the
// table t.
func aim(list []*forget, t *servicemodel.Table) {
	first, all, about := list[0].frontend, false, map[netip.AddrPort]bool{}
	whole := first != nil && first.AffinityService
	given := func(ep netip.AddrPort) netip.AddrPort {
		if whole {
			return netip.AddrPortFrom(ep.Addr(), 0)
		}
		return ep
	}
	for _, f := range list {
		all = all || f.others
		for _, ep := range slices.Concat(f.lost[0], f.lost[1]) {
			about[given(ep)] = true
		}
	}

	now := [2]map[netip.AddrPort]bool{{}, {}}
	for i, pools := range poolsOfClients(t, first) {
		for _, p := range pools {
			for _, s := range p.Slots {
				if ep := given(s.Endpoint); all || about[ep] {
					now[i][ep] = true
				}
			}
		}
	}

	for _, f := range list {
		f.now, f.gone = now, map[netip.AddrPort]bool{}
		for i, lost := range f.lost {
			for _, ep := range lost {
				f.gone[given(ep)] = f.gone[given(ep)] || !now[i][given(ep)]
			}
		}
	}
}

// poolsOfClients returns the pools from which the clients of a frontend, or of its whole service,
// get endpoints: pools for clients inside, and pools for clients outside.
func poolsOfClients(t *servicemodel.Table, of *servicemodel.Frontend) (l [2][]*servicemodel.Pool) {
	if of == nil {
		return l
	}
	frontends := []*servicemodel.Frontend{t.Frontend(of.Key)}
	if of.AffinityService {
		frontends = t.FrontendsOfService(of.Service.Name)
	}
	for _, fe := range frontends {
		if fe == nil || fe.Affinity == 0 || clientsOf(fe) != clientsOf(of) {
			continue
		}
		internal, external := usable(t, fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && !slices.Contains(l[i], p) {
				l[i] = append(l[i], p)
			}
		}
	}
	if of.AffinityService { // a client has one endpoint at ports of any policy
		l[0] = slices.Concat(l[0], l[1])
		l[1] = l[0]
	}
	return l
}

// takes reports whether a client must forget an endpoint.
func (f *forget) takes(ep netip.AddrPort) bool {
	if f.others {
		return !f.now[0][ep] || !f.now[1][ep]
	}
	return f.gone[ep]
}

// note notes the result of a reading, which began when the kernel was done with the packets of the
// time done. It reports whether the clients are forgotten: after one reading that found none if it
// certainly saw all entries, and otherwise after two in a row.
func (f *forget) note(done, now time.Time, sure bool) bool {
	switch {
	case f.found:
		f.since, f.clean = now, 0
	case !done.Before(f.since):
		f.clean++
	}
	return f.clean == 2 || f.clean == 1 && sure
}

// forgetAll forgets all clients of a frontend, except clients of endpoints that every client may
// have by now.
func forgetAll(fe *servicemodel.Frontend) forget { return forget{frontend: fe, others: true} }

// planForgetting plans which clients are forgotten after the transaction. A client is forgotten if
// its frontend loses the client's endpoint, in a table that stays.
func (pl *planner) planForgetting(p *plan) {
	for _, t := range p.tables {
		if t.create || t.renew || !t.next.exists {
			continue
		}
		changes(p.c, t.f, func(old, new *servicemodel.Frontend) {
			switch {
			case old == nil || old.Affinity == 0:
			case new == nil || new.Affinity == 0 || clientsOf(old) != clientsOf(new),
				old.AffinityBits != new.AffinityBits:
				gone := forgetAll(old)
				if pl.owning != nil {
					// The clients of a node port may belong to another owner's frontend with the
					// same number. Only those of this frontend's endpoints are forgotten.
					internal, external := p.c.Old.PoolsOf(old)
					gone.others = false
					gone.lost = [2][]netip.AddrPort{endpointsOf(internal), endpointsOf(external)}
				}
				p.forget = append(p.forget, gone)
			default: // the endpoints that the frontend no longer has for an origin
				oldInternal, oldExternal := usable(p.c.Old, old)
				newInternal, newExternal := usable(p.c.New, new)
				lost := [2][]netip.AddrPort{pl.w.poolChange(oldInternal, newInternal).lost,
					pl.w.poolChange(oldExternal, newExternal).lost}
				if len(lost[0])+len(lost[1]) > 0 {
					p.forget = append(p.forget, forget{frontend: new, lost: lost})
				}
			}
		})
	}
	p.forgetMoved()
	p.leavesClients = slices.ContainsFunc(p.forget, func(f forget) bool {
		t := p.tables[nft.FamilyIndex(f.frontend.Key.Addr)]
		return !t.create && len(t.next.shape.affinity) > 0
	})
}

// without returns the endpoints that are in old and not in new. If both pools exist, an endpoint
// that is also in new is in one of the slots that differ, or did not move.
func without(old, new *servicemodel.Pool) []netip.AddrPort {
	if new == nil {
		return endpointsOf(old)
	}
	var gone []netip.AddrPort
	kept := map[netip.AddrPort]bool{}
	for s := range new.SlotsSince(old) {
		kept[s.New.Endpoint] = true
		gone = append(gone, s.Old.Endpoint)
	}
	return slices.DeleteFunc(gone, func(ep netip.AddrPort) bool {
		return kept[ep] || !ep.IsValid()
	})
}

// forgetMoved forgets all clients of frontends that treat origins differently, if the rules
// recognize pods in another way: a pod may now count as an outside client, with other endpoints or
// none.
func (p *plan) forgetMoved() {
	r := p.c.Rules
	if r == nil || r.Old.MasqueradeMark == 0 {
		return
	}
	old, new := *r.Old, *r.New
	old.MasqueradeMark, old.NodePorts, old.ServiceCIDRs = new.MasqueradeMark, new.NodePorts,
		new.ServiceCIDRs
	if old.Equal(new) {
		return
	}
	for fe := range p.c.New.Frontends() {
		if fe.Affinity > 0 && fe.Internal != fe.External {
			p.forget = append(p.forget, forgetAll(fe))
		}
	}
}

// usable returns the pools from which clients of a frontend get endpoints: one for clients inside,
// one for clients outside.
func usable(t *servicemodel.Table, fe *servicemodel.Frontend) (internal,
	external *servicemodel.Pool) {
	if internal, external = t.PoolsOf(fe); fe.External == fe.Internal {
		external = internal
	}
	return internal, external
}

func endpointsOf(p *servicemodel.Pool) []netip.AddrPort {
	if p == nil {
		return nil
	}
	l := make([]netip.AddrPort, len(p.Slots))
	for i, s := range p.Slots {
		l[i] = s.Endpoint
	}
	return l
}
