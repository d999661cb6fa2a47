package plan

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// planForgetting plans the clients to forget after the transaction. A client is forgotten if its
// frontend loses the client's endpoint, in a table that is kept.
func (pl *Planner) planForgetting(p *Plan) {
	for _, t := range p.Tables {
		if t.Create || t.Renew || !t.next.Exists {
			continue
		}
		changes(p.Changes, t.Family, func(old, new *servicemodel.Frontend) {
			switch {
			case old == nil || old.Affinity == 0:
			case new == nil || new.Affinity == 0 || form.ClientsOf(old) != form.ClientsOf(new),
				old.AffinityBits != new.AffinityBits:
				gone := ForgetAll(old)
				if pl.Owning != nil {
					// The clients of a node port may belong to another owner's frontend with the
					// same number. Only the clients of this frontend's endpoints are forgotten.
					internal, external := p.Changes.Old.PoolsOf(old)
					gone.others = false
					gone.Lost = [2][]netip.AddrPort{form.EndpointsOf(internal),
						form.EndpointsOf(external)}
				}

				p.Forget = append(p.Forget, gone)
			default: // the endpoints that the frontend no longer has for an origin
				oldInternal, oldExternal := usable(p.Changes.Old, old)
				newInternal, newExternal := usable(p.Changes.New, new)
				lost := [2][]netip.AddrPort{pl.Writer.PoolChange(oldInternal, newInternal).Lost,
					pl.Writer.PoolChange(oldExternal, newExternal).Lost}
				if len(lost[0])+len(lost[1]) > 0 {
					p.Forget = append(p.Forget, Forget{Frontend: new, Lost: lost})
				}
			}
		})
	}

	p.forgetMoved()
	p.leavesClients = slices.ContainsFunc(p.Forget, func(f Forget) bool {
		t := p.Tables[nft.FamilyIndex(f.Frontend.Key.Addr)]
		return !t.Create && len(t.next.Shape.Affinity) > 0
	})
}

// forgetMoved forgets all clients of frontends that treat origins differently, if the rules that
// recognize pods changed: a pod may now count as an outside client, with different endpoints or no
// endpoints.
func (p *Plan) forgetMoved() {
	r := p.Changes.Rules
	if r == nil || r.Old.MasqueradeMark == 0 {
		return
	}
	old, new := *r.Old, *r.New
	old.MasqueradeMark, old.NodePorts, old.ServiceCIDRs = new.MasqueradeMark, new.NodePorts,
		new.ServiceCIDRs
	if old.Equal(new) {
		return
	}
	for fe := range p.Changes.New.Frontends() {
		if fe.Affinity > 0 && fe.Internal != fe.External {
			p.Forget = append(p.Forget, ForgetAll(fe))
		}
	}
}

// usable returns the pools from which clients of a frontend get endpoints: a pool for clients
// inside, and a pool for clients outside.
func usable(t *servicemodel.Table, fe *servicemodel.Frontend) (internal,
	external *servicemodel.Pool) {
	internal, external = t.PoolsOf(fe)
	if fe.External == fe.Internal {
		external = internal
	}
	return internal, external
}
