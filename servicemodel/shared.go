package servicemodel

import (
	"iter"

	"github.com/kernlb/kernlb/internal/shared"
)

// Shared reads a table without copying what it reads. It is for the packages of this module that
// look at every frontend and pool, as the backends do several times.
type Shared struct{ t *Table }

// Shared returns t with methods that hand out its own objects, which other tables share: they must
// not be modified. Only packages of this module have the key; everybody else uses the methods of
// Table, which return copies.
func (t *Table) Shared(shared.Key) Shared { return Shared{t.orEmpty()} }

// Frontends is [Table.Frontends] without copies.
func (s Shared) Frontends() iter.Seq[*Frontend] { return values(s.t.frontends.All()) }

// Frontend is [Table.Frontend] without a copy.
func (s Shared) Frontend(k FrontendKey) *Frontend { return s.t.frontend(k) }

// FrontendsOf is [Table.FrontendsOf] without copies.
func (s Shared) FrontendsOf(n PortName) []*Frontend { return s.t.frontendsOf(n) }

// Pools is [Table.Pools] without copies.
func (s Shared) Pools() iter.Seq[*Pool] { return values(s.t.pools.All()) }

// Pool is [Table.Pool] without a copy.
func (s Shared) Pool(id PoolID) *Pool { return s.t.pool(id) }

// PoolsOf is [Table.PoolsOf] without copies.
func (s Shared) PoolsOf(f *Frontend) (internal, external *Pool) {
	internal = s.poolOf(f, f.Internal)
	if f.External != f.Internal {
		external = s.poolOf(f, f.External)
	}
	return internal, external
}

func (s Shared) poolOf(f *Frontend, v Verdict) *Pool {
	if id, ok := f.Pool(v); ok {
		return s.t.pool(id)
	}
	return nil
}

// SharedState reads a state without copying what it reads, as [Shared] does a table.
type SharedState struct{ s State }

// Shared returns s with methods that hand out its own objects, which other states share: they must
// not be modified. As with [Table.Shared], only packages of this module have the key.
func (s State) Shared(shared.Key) SharedState { return SharedState{s} }

// Services is [State.Services] without copies.
func (s SharedState) Services() iter.Seq[*Service] { return values(s.s.services.All()) }

// Endpoints is [State.Endpoints] without a copy.
func (s SharedState) Endpoints(n Name) []Endpoint { return s.s.endpointsOf(n) }
