package nftables

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// sweep decides which clients must be forgotten.
type sweep struct {
	table *servicemodel.Table
	// byKey is what to forget of each frontend.
	byKey map[servicemodel.FrontendKey]forget
	// all says that clients of all other frontends must be forgotten, too.
	all bool
}

// sweepAfter returns the sweep that a plan or an earlier commit made necessary.
func sweepAfter(p *plan) *sweep {
	if p.have.unswept {
		return sweepAll(p.c.New)
	}
	s := &sweep{table: p.c.New, byKey: map[servicemodel.FrontendKey]forget{}}
	for _, f := range p.forget {
		s.add(f)
	}
	return s
}

// sweepAll returns a sweep for use when nothing tells what changed. It keeps a client only if its
// endpoint is one that every client may be given.
func sweepAll(t *servicemodel.Table) *sweep {
	s := &sweep{table: t, byKey: map[servicemodel.FrontendKey]forget{}, all: true}
	for fe := range nocopy.Of(t).Frontends() {
		if fe.Affinity == 0 {
			continue
		}
		internal, external := usable(t, fe)
		s.add(forget{fe, inBoth(internal, external), true})
	}
	return s
}

func (s *sweep) add(f forget) { s.byKey[f.frontend.Key] = f }

// concerns reports whether clients in the table of a family may have to be forgotten.
func (s *sweep) concerns(f *nft.Family) bool {
	for k := range s.byKey {
		if k.Family() == f.Model {
			return true
		}
	}
	return s.all
}

// takes reports whether an entry of an affinity map must go. The key of an entry is the frontend's
// address, protocol and port, and the client's address.
func (s *sweep) takes(f *nft.Family, e nft.Elem) bool {
	if len(e.Key) != 2*f.AddrLen+8 {
		return false
	}
	r := nft.Reader{Bytes: e.Key}
	key := r.Frontend(f.Any, false)
	forget, ok := s.byKey[key]
	if !ok {
		if nocopy.Of(s.table).Frontend(key) != nil {
			return s.all // the port is a service's own at this address, and not the node port
		}
		key.Addr = f.Any
		if forget, ok = s.byKey[key]; !ok {
			return s.all
		}
	}
	d := nft.Reader{Bytes: e.Data}
	return forget.takes(d.Endpoint(f.AddrLen))
}

// forget says which clients of a frontend must be forgotten because their endpoint may no longer be
// used: the clients of the listed endpoints or, if others is set, the clients of all other
// endpoints.
type forget struct {
	frontend  *servicemodel.Frontend
	endpoints []netip.AddrPort
	others    bool
}

func (f *forget) takes(ep netip.AddrPort) bool {
	return slices.Contains(f.endpoints, ep) != f.others
}

// forgetAll forgets all clients of a frontend.
func forgetAll(fe *servicemodel.Frontend) forget { return forget{frontend: fe, others: true} }

// planForgetting plans which clients are forgotten after the transaction: those whose endpoint
// their frontend loses, in tables that stay.
func (pl *planner) planForgetting(p *plan) {
	for _, t := range p.tables {
		if t.create || !t.next.exists {
			continue
		}
		changes(p.c, t.f, func(old, new *servicemodel.Frontend) {
			switch {
			case old == nil || old.Affinity == 0:
			case new == nil || new.Affinity == 0:
				p.forget = append(p.forget, pl.forgetGone(p.c.Old, old))
			default:
				p.forgetLost(old, new)
			}
		})
	}
	p.forgetMoved()
}

// forgetGone forgets the clients of a frontend that goes. In a commit of parts, the clients of a
// node port may belong to another owner's frontend with the same number. Then only the clients of
// this frontend's endpoints are forgotten.
func (pl *planner) forgetGone(of *servicemodel.Table, fe *servicemodel.Frontend) forget {
	if pl.owning == nil {
		return forgetAll(fe)
	}
	internal, external := of.PoolsOf(fe)
	return forget{frontend: fe,
		endpoints: slices.Concat(endpointsOf(internal), endpointsOf(external))}
}

// forgetLost forgets the clients whose endpoint a frontend no longer has for their origin.
func (p *plan) forgetLost(old, new *servicemodel.Frontend) {
	oldInternal, oldExternal := usable(p.c.Old, old)
	newInternal, newExternal := usable(p.c.New, new)
	gone := append(without(oldInternal, newInternal), without(oldExternal, newExternal)...)
	if len(gone) > 0 {
		slices.SortFunc(gone, netip.AddrPort.Compare)
		p.forget = append(p.forget, forget{frontend: new, endpoints: slices.Compact(gone)})
	}
}

// inBoth returns the endpoints that both pools have.
func inBoth(a, b *servicemodel.Pool) []netip.AddrPort {
	in := map[netip.AddrPort]bool{}
	for _, ep := range endpointsOf(b) {
		in[ep] = true
	}
	return slices.DeleteFunc(endpointsOf(a), func(ep netip.AddrPort) bool { return !in[ep] })
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
	for fe := range nocopy.Of(p.c.New).Frontends() {
		if fe.Affinity > 0 && fe.Internal != fe.External {
			p.forget = append(p.forget, forgetAll(fe))
		}
	}
}

// usable returns the pools whose endpoints clients of a frontend may be given: one for clients
// inside, one for clients outside.
func usable(t *servicemodel.Table, fe *servicemodel.Frontend) (internal,
	external *servicemodel.Pool) {
	if internal, external = nocopy.Of(t).PoolsOf(fe); fe.External == fe.Internal {
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

// leavesClients reports whether the affinity maps may still hold clients to be forgotten after the
// plan's commit.
func (p *plan) leavesClients() bool {
	for _, f := range p.forget {
		t := p.of(f.frontend.Key.Addr)
		if !t.create && t.has(affinityMap(0)) {
			return true
		}
	}
	return false
}
