package flows

import (
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// Index tells which service a flow belongs to.
type Index struct {
	services *servicemodel.Table
	node     map[netip.Addr]struct{}
	zone     uint16
}

// NewIndex returns the index of a table of services, on a node whose addresses take node ports
// ([conntrack.Table.NodeAddrs]).
func NewIndex(t *servicemodel.Table, nodeAddrs []netip.Addr) *Index {
	x := &Index{services: t, node: make(map[netip.Addr]struct{}, len(nodeAddrs))}
	for _, a := range nodeAddrs {
		x.node[a] = struct{}{}
	}
	return x
}

// Frontend returns the frontend that a flow was sent to, or nil if there is none.
func (x *Index) Frontend(f *conntrack.Flow) *servicemodel.Frontend {
	if f.Zone() != x.zone {
		return nil
	}
	dst := f.Original.Dst
	key := servicemodel.FrontendKey{Addr: dst.Addr(), Protocol: servicemodel.Protocol(f.Protocol),
		Port: dst.Port()}
	if found := nocopy.Of(x.services).Frontend(key); found != nil {
		return found
	}
	if _, ok := x.node[dst.Addr()]; !ok {
		return nil
	}
	return nocopy.Of(x.services).Frontend(anywhere(key))
}

// Serves reports whether the frontend still has the endpoint that answers the flow.
func (x *Index) Serves(f *servicemodel.Frontend, fl *conntrack.Flow) bool {
	for _, p := range pools(x.services, f) {
		if p == nil {
			continue
		}
		for i := range p.Slots {
			if p.Slots[i].Endpoint == fl.Reply.Src {
				return true
			}
		}
	}
	return false
}
