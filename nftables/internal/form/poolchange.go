package form

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// poolChange is the difference of two pools. The frontends of a service port share it.
type poolChange struct {
	old, new  *servicemodel.Pool
	Lost      []netip.AddrPort // the endpoints that are in old and not in new
	addresses []addressChange
}

// addressChange is an address whose endpoint differs between two pools. If several endpoints have
// the address, the endpoint with the lowest port counts. An invalid endpoint means no endpoint.
type addressChange struct{ old, new netip.AddrPort }

// byAddress returns the addresses whose endpoint differs.
func (c *poolChange) byAddress() []addressChange {
	if c.addresses != nil {
		return c.addresses
	}
	at := map[netip.Addr]int{}
	for _, ep := range slices.Concat(c.Lost, without(c.new, c.old)) {
		if _, ok := at[ep.Addr()]; !ok {
			at[ep.Addr()] = len(at)
		}
	}

	l := make([]addressChange, len(at))
	least := func(p *servicemodel.Pool, of func(*addressChange) *netip.AddrPort) {
		if p == nil || len(at) == 0 {
			return
		}
		for i := range p.Slots {
			ep := p.Slots[i].Endpoint
			if i, ok := at[ep.Addr()]; ok {
				if e := of(&l[i]); !e.IsValid() || ep.Port() < e.Port() {
					*e = ep
				}
			}
		}
	}

	least(c.old, func(a *addressChange) *netip.AddrPort { return &a.old })
	least(c.new, func(a *addressChange) *netip.AddrPort { return &a.new })
	c.addresses = slices.DeleteFunc(l, func(a addressChange) bool { return a.old == a.new })
	return c.addresses
}

// without returns the endpoints that are in old and not in new. If both pools exist, an endpoint
// that is also in new did not move or is in one of the slots that differ.
func without(old, new *servicemodel.Pool) []netip.AddrPort {
	if new == nil {
		return EndpointsOf(old)
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

// EndpointsOf returns the endpoints of a pool. A nil pool has no endpoints.
func EndpointsOf(p *servicemodel.Pool) []netip.AddrPort {
	if p == nil {
		return nil
	}
	l := make([]netip.AddrPort, len(p.Slots))
	for i, s := range p.Slots {
		l[i] = s.Endpoint
	}
	return l
}
