package nftables

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// sweep decides which clients must be forgotten.
type sweep struct {
	table *servicemodel.Table
	// byKey says it for frontends, by family and by their key in the sets.
	byKey [2]map[string]forget
	// all says that clients of other frontends must be forgotten, too.
	all bool
}

// sweepAfter returns the sweep after a commit that led to a table.
func sweepAfter(p *plan, t *servicemodel.Table) *sweep {
	s := &sweep{table: t, byKey: [2]map[string]forget{{}, {}}}
	for _, f := range p.forget {
		s.add(f)
	}
	return s
}

// sweepAll returns the sweep that leaves no client but those with an endpoint that everybody may be
// given. It is for when it is not known what changed.
func sweepAll(t *servicemodel.Table) *sweep {
	s := &sweep{table: t, byKey: [2]map[string]forget{{}, {}}, all: true}
	for fe := range shared.Of(t).Frontends() {
		if fe.Affinity == 0 {
			continue
		}
		internal, external := usable(t, fe)
		s.add(forget{fe, inBoth(internal, external), true})
	}
	return s
}

func (s *sweep) add(f forget) {
	s.byKey[nft.FamilyIndex(f.frontend.Key.Addr)][string(
		nft.AppendFrontend(nil, f.frontend.Key))] = f
}

// takes reports whether an entry of an affinity map must go: its key is the frontend's address,
// protocol and port, and the client's address.
func (s *sweep) takes(i int, e nft.Elem) bool {
	f := nft.Families[i]
	k := len(e.Key) - f.AddrLen // where the client begins
	if k != f.AddrLen+8 {
		return false
	}
	forget, ok := s.byKey[i][string(e.Key[:k])]
	if !ok {
		r := nft.Reader{Bytes: e.Key}
		if shared.Of(s.table).Frontend(r.Frontend(f.Any, false)) != nil {
			return s.all // at this address the port is a service's own, not the node port
		}
		if forget, ok = s.byKey[i][string(e.Key[f.AddrLen:k])]; !ok {
			return s.all
		}
	}
	d := nft.Reader{Bytes: e.Data}
	return forget.takes(d.Endpoint(f.AddrLen))
}

// forget is affinity of a frontend that must be forgotten, since it leads to an endpoint that is no
// longer to be used: to one of the endpoints or, with others, to any but them.
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

// forgetAll forgets all clients of a frontend that goes. Where it is not known what others hold,
// those of a node port may be clients of another frontend that has its number: then only those are
// forgotten that were given an endpoint of this one.
func (pl *planner) forgetAll(fe *servicemodel.Frontend) forget {
	if pl.owning == nil {
		return forgetAll(fe)
	}
	internal, external := pl.c.Old.PoolsOf(fe)
	return forget{frontend: fe,
		endpoints: slices.Concat(endpointsOf(internal), endpointsOf(external))}
}

// forgetChanged forgets the affinity to endpoints that a frontend no longer has for clients of some
// origin.
func (pl *planner) forgetChanged(old, new *servicemodel.Frontend) {
	if old.Affinity == 0 {
		return
	}
	if new.Affinity == 0 {
		pl.p.forget = append(pl.p.forget, pl.forgetAll(old))
		return
	}
	oldInternal, oldExternal := usable(pl.c.Old, old)
	newInternal, newExternal := usable(pl.c.New, new)
	gone := append(without(oldInternal, newInternal), without(oldExternal, newExternal)...)
	if len(gone) > 0 {
		slices.SortFunc(gone, netip.AddrPort.Compare)
		pl.p.forget = append(pl.p.forget, forget{frontend: new, endpoints: slices.Compact(gone)})
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

// without returns the endpoints that are in old and not in new. Where both are there, an endpoint
// that is in new too stands in one of the slots that differ, or did not move.
func without(old, new *servicemodel.Pool) []netip.AddrPort {
	if new == nil {
		return endpointsOf(old)
	}
	var gone []netip.AddrPort
	kept := map[netip.AddrPort]bool{}
	for s := range (servicemodel.PoolChange{Old: old, New: new}).Slots() {
		kept[s.New.Endpoint] = true
		gone = append(gone, s.Old.Endpoint)
	}
	return slices.DeleteFunc(gone, func(ep netip.AddrPort) bool {
		return kept[ep] || !ep.IsValid()
	})
}

// forgetMoved forgets all clients of frontends that treat origins differently, when pods are told
// in another way: what was a pod may be an outside client now, with other endpoints or none.
func (pl *planner) forgetMoved() {
	r := pl.c.Rules
	if r == nil || r.Old.MasqueradeMark == 0 {
		return
	}
	old, new := r.Old, r.New
	old.MasqueradeMark, old.NodePorts, old.ServiceCIDRs = new.MasqueradeMark, new.NodePorts,
		new.ServiceCIDRs
	if old.Equal(new) {
		return
	}
	for fe := range shared.Of(pl.c.New).Frontends() {
		if fe.Affinity > 0 && fe.Internal != fe.External {
			pl.p.forget = append(pl.p.forget, forgetAll(fe))
		}
	}
}

// usable returns the pools that clients of a frontend may be given endpoints of: those inside, and
// those outside.
func usable(t *servicemodel.Table, fe *servicemodel.Frontend) (internal,
	external *servicemodel.Pool) {
	if internal, external = shared.Of(t).PoolsOf(fe); fe.External == fe.Internal {
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

// leavesClients reports whether the affinity maps may have clients to be forgotten when the plan is
// done.
func (p *plan) leavesClients() bool {
	for _, f := range p.forget {
		fp := &p.families[nft.FamilyIndex(f.frontend.Key.Addr)]
		if !fp.create && fp.has(affinityMap(0)) {
			return true
		}
	}
	return false
}
