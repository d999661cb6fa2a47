package servicemodel

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// tableView reads a table without copying its objects, for packages of this module that walk all
// frontends and pools. It also has the methods that only engines and backends need.
type tableView struct{ t *Table }

// Shared returns t with methods that return t's own objects. Other tables share them, so they must
// not be modified. Only packages of this module have the key. Other packages use the methods of
// Table, which return copies.
func (t *Table) Shared(nocopy.Key) tableView { return tableView{t.orEmpty()} }

// Rules is [Table.Rules] without a copy.
func (s tableView) Rules() *Rules { return &s.t.rules }

// Frontends is [Table.Frontends] without copies.
func (s tableView) Frontends() iter.Seq[*Frontend] { return values(s.t.frontends.All()) }

// Frontend is [Table.Frontend] without a copy.
func (s tableView) Frontend(k FrontendKey) *Frontend { return s.t.frontend(k) }

// FrontendsOf is [Table.FrontendsOf] without copies.
func (s tableView) FrontendsOf(n PortName) []*Frontend { return s.t.frontendsOf(n) }

// Service returns the frontends of all ports of a service.
func (s tableView) Service(n Name) (l []*Frontend) {
	for port, own := range s.t.owned.From(PortName{Name: n}) {
		if port.Name != n {
			break
		}
		l = append(l, own...)
	}
	return l
}

// Pools is [Table.Pools] without copies.
func (s tableView) Pools() iter.Seq[*Pool] { return values(s.t.pools.All()) }

// Pool is [Table.Pool] without a copy.
func (s tableView) Pool(id PoolID) *Pool { return s.t.pool(id) }

// IdleScheduler returns the scheduler of the service of a frontend without endpoints. Such a
// frontend has no pool, which would record the scheduler. With it a backend that lacks the
// scheduler refuses the service before endpoints come. The result is also [SchedulerDefault] if the
// table was not resolved from a state.
func (s tableView) IdleScheduler(f *Frontend) Scheduler {
	if f.Internal.Balances() || f.External.Balances() || !s.t.remembers() {
		return SchedulerDefault
	}
	if svc := s.t.memory.state.serviceOf(f.Service.Name); svc != nil {
		return svc.Scheduler
	}
	return SchedulerDefault
}

// PoolsOf is [Table.PoolsOf] without copies.
func (s tableView) PoolsOf(f *Frontend) (internal, external *Pool) {
	internal = s.poolOf(f, f.Internal)
	if f.External != f.Internal {
		external = s.poolOf(f, f.External)
	}
	return internal, external
}

func (s tableView) poolOf(f *Frontend, v Verdict) *Pool {
	if id, ok := f.Pool(v); ok {
		return s.t.pool(id)
	}
	return nil
}

// Contents returns the contents that a kernel holds. [NewTable] makes an equal table from them.
func (s tableView) Contents() Contents {
	return Contents{Rules: s.t.Rules(), Frontends: slices.Collect(s.t.Frontends()),
		Pools: slices.Collect(s.t.Pools()), ClusterIPs: slices.Collect(s.t.ClusterIPs()),
		Hairpins: slices.Collect(s.t.Hairpins())}
}

// HasClusterIP reports whether a is one of [Table.ClusterIPs].
func (s tableView) HasClusterIP(a netip.Addr) bool {
	_, ok := s.t.clusterIPs.Get(a)
	return ok
}

// HasHairpin reports whether a is one of [Table.Hairpins].
func (s tableView) HasHairpin(a netip.Addr) bool {
	_, ok := s.t.hairpins.Get(a)
	return ok
}

// stateView reads a state without copying its objects, as [tableView] does with a table.
type stateView struct{ s State }

// Shared returns s with methods that return s's own objects. Other states share them, so they must
// not be modified. As with [Table.Shared], only packages of this module have the key.
func (s State) Shared(nocopy.Key) stateView { return stateView{s} }

// Services is [State.Services] without copies.
func (s stateView) Services() iter.Seq[*Service] { return values(s.s.services.All()) }

// Tried returns the state with the definitions in before of services that have no pool in t. A
// backend has not seen the pools of their new definitions, and may refuse these later.
func (s stateView) Tried(before State, t *Table) State {
	tried := s.s
	for c := range pmap.Diff(before.services, s.s.services, (*Service).equal) {
		balances := func(f *Frontend) bool { return f.Internal.Balances() || f.External.Balances() }
		if c.InOld && c.InNew && !slices.ContainsFunc((tableView{t}).Service(c.Key), balances) {
			tried = tried.WithService(c.Old)
		}
	}
	return tried
}

// Endpoints is [State.Endpoints] without a copy.
func (s stateView) Endpoints(n Name) []Endpoint { return s.s.endpointsOf(n) }
