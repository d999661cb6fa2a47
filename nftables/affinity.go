package nftables

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// forgetter decides which clients must be forgotten.
type forgetter struct {
	table *servicemodel.Table
	// by the key of the frontend, as in the sets; the endpoints to forget, none for all
	byKey [2]map[string][]netip.AddrPort
	// looked says that the family's map was read, and learnt what the counters said before.
	looked [2]bool
	learnt [2]uint64
}

// newForgetter prepares what a plan wants forgotten; nil if that is nothing.
func newForgetter(p *plan, t *servicemodel.Table) *forgetter {
	if len(p.forget) == 0 {
		return nil
	}
	g := &forgetter{table: t, byKey: [2]map[string][]netip.AddrPort{{}, {}}}
	for _, f := range p.forget {
		g.byKey[nftwire.FamilyIndex(f.frontend.Key.Addr)][string(nftwire.AppendFrontend(nil, f.frontend.Key))] = f.endpoints
	}
	return g
}

// matches reports whether an entry of the affinity map must go: its key is the frontend's address, protocol and port, and the client's address.
func (g *forgetter) matches(i int, e nftwire.Elem) bool {
	f := nftwire.Families[i]
	k := len(e.Key) - f.AddrLen // where the client begins
	if k != f.AddrLen+8 {
		return false
	}
	endpoints, ok := g.byKey[i][string(e.Key[:k])]
	if !ok {
		if endpoints, ok = g.byKey[i][string(e.Key[f.AddrLen:k])]; !ok {
			return false
		}
		r := nftwire.Reader{Bytes: e.Key}
		if g.table.Frontend(r.Frontend(f.Any, false)) != nil {
			return false // at this address the port is a service's own, not the node port
		}
	}
	d := nftwire.Reader{Bytes: e.Data}
	return len(endpoints) == 0 || slices.Contains(endpoints, d.Endpoint(f.AddrLen))
}
