package flows

import (
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

// Index finds the service of a flow.
type Index struct {
	services *servicemodel.Table
	node     map[netip.Addr]struct{}
	zone     uint16
}

// NewIndex returns the index of a table of services, on a node whose addresses answer node ports
// ([conntrack.Table.NodeAddrs]).
func NewIndex(t *servicemodel.Table, nodeAddrs []netip.Addr) *Index {
	x := &Index{services: t, node: make(map[netip.Addr]struct{}, len(nodeAddrs))}
	for _, a := range nodeAddrs {
		x.node[a] = struct{}{}
	}
	return x
}

// Frontend returns the frontend to which a flow was sent, or nil.
func (x *Index) Frontend(f *conntrack.Flow) *servicemodel.Frontend {
	if f.Zone() != x.zone {
		return nil
	}
	return x.at(keyOf(f.Original.Dst, f.Protocol))
}

// at returns the frontend that answers at a key, or nil. At an address of the node it may be a node
// port. The frontend may be a range.
func (x *Index) at(key servicemodel.FrontendKey) *servicemodel.Frontend {
	f := x.services.Frontend(key)
	if _, node := x.node[key.Addr]; f == nil && node {
		f = x.services.Frontend(anywhere(key))
	}
	if f == nil && key.EndPort == 0 {
		return x.rangeAt(key)
	}
	return f
}

// rangeAt returns the range that gets the packets for the first port of a key, or nil. At an
// address of the node it may be a range of node ports.
func (x *Index) rangeAt(key servicemodel.FrontendKey) *servicemodel.Frontend {
	l := x.services.RangesAt(key.Addr, key.Protocol, key.Port)
	if _, node := x.node[key.Addr]; len(l) == 0 && node {
		l = x.services.RangesAt(anywhere(key).Addr, key.Protocol, key.Port)
	}
	if len(l) == 0 {
		return nil
	}
	return l[0]
}

// endpointOf returns the endpoint that answers a flow to a frontend. It has no port if the frontend
// is a range and the flow keeps its port, and the endpoint's first port if the range is shifted.
func endpointOf(f *servicemodel.Frontend, fl *conntrack.Flow) netip.AddrPort {
	if f.Shifted {
		at := fl.Reply.Src
		return netip.AddrPortFrom(at.Addr(), at.Port()-(fl.Original.Dst.Port()-f.Key.Port))
	}
	if f.Key.EndPort != 0 && fl.Reply.Src.Port() == fl.Original.Dst.Port() {
		return netip.AddrPortFrom(fl.Reply.Src.Addr(), 0)
	}
	return fl.Reply.Src
}

// keyOf returns the key of a frontend at an address and port.
func keyOf(at netip.AddrPort, p conntrack.Protocol) servicemodel.FrontendKey {
	return servicemodel.FrontendKey{Addr: at.Addr(), Port: at.Port(),
		Protocol: servicemodel.Protocol(p)}
}

// anywhere returns the key of the node port with the same number.
func anywhere(key servicemodel.FrontendKey) servicemodel.FrontendKey {
	if key.Addr.Is4() {
		key.Addr = netip.IPv4Unspecified()
	} else {
		key.Addr = netip.IPv6Unspecified()
	}

	return key
}

// Serves reports whether the frontend still has the endpoint that answers the flow.
func (x *Index) Serves(f *servicemodel.Frontend, fl *conntrack.Flow) bool {
	answering := endpointOf(f, fl)
	answers := func(s servicemodel.Slot) bool {
		return s.Endpoint == fl.Reply.Src || s.Endpoint == answering
	}
	for _, p := range poolsOf(x.services, f) {
		if p != nil && slices.ContainsFunc(p.Slots, answers) {
			return true
		}
	}

	return false
}
