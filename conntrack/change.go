package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
)

// Change is what has to be known of a change of services to tell which flows it left stale. It says
// how things are after the change; how they were before is in the table.
type Change struct {
	// Frontends are those that changed. Flows to any other destination are never stale.
	Frontends []Frontend
	// NodeAddrs are the addresses that take node ports: frontends with an unspecified address are
	// at these. Leave out loopback unless node ports answer there.
	NodeAddrs []netip.Addr
	// Zone is the conntrack zone in which services are translated. Flows in other zones are left
	// alone, even if they look the same.
	Zone uint16
}

// FrontendKey is where clients send to.
type FrontendKey struct {
	// Addr is the address. 0.0.0.0 and :: stand for each of [Change.NodeAddrs] of that family,
	// except where another frontend has that very address with the same port and protocol.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

// String returns "10.0.0.1:53/udp".
func (k FrontendKey) String() string {
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Protocol.String()
}

// Frontend is what is true of one frontend after the change. It may be of TCP, UDP or SCTP. To
// leave the connections of a frontend alone, or to drain them first, leave it out.
type Frontend struct {
	Key FrontendKey

	// Endpoints may keep the flows they have: all that new flows may go to under any policy of the
	// frontend, and those that get no new flows but are still serving, because they terminate or
	// are drained. Empty says that no endpoint may: the service has none, or the frontend is no
	// more.
	Endpoints []netip.AddrPort

	// Removed are the endpoints that the change took away. If it is not nil, only flows to these
	// are stale. If nil, flows to any endpoint not in Endpoints are stale, which also finds what an
	// interrupted cleaning left behind. An empty list that is not nil protects the frontend against
	// a node port of the same number.
	Removed []netip.AddrPort

	// Untranslated says that flows which went to the frontend's own address are stale, too. They
	// began when no rule translated them, and last as long as the client keeps sending. Set it
	// where the frontend has endpoints; not where it was removed, when such flows belong to
	// somebody else, and not where the packets are forwarded without translation (IPVS direct
	// routing and tunnels).
	Untranslated bool

	// Backwards says that flows from the frontend's own address and port are stale, too. Such a
	// flow begins with a late answer: an untranslated flow is deleted while the answer of whoever
	// had the address is under way, and the answer makes a flow of its own, of which conntrack then
	// takes all that the client sends for answers. So set it for another cleaning some time after
	// one that deleted untranslated flows. It has no effect at the addresses of the node, from
	// which other flows begin at any port.
	Backwards bool
}

// ErrBadChange says that a change cannot be made sense of.
var ErrBadChange = errors.New("bad change")

// Class is how a flow relates to a change.
type Class uint8

// The classes. Flows of the last three are stale.
const (
	Unrelated    Class = iota // it is not to a frontend that changed
	Current                   // it goes where it may go
	Misdirected               // it goes to an endpoint that may not have it
	Untranslated              // it goes to the frontend's own address instead of an endpoint
	// it comes from the frontend's own address, and catches what is sent there
	Backwards
)

// String returns the class in one word.
func (c Class) String() string {
	switch c {
	case Unrelated:
		return "unrelated"
	case Current:
		return "current"
	case Misdirected:
		return "misdirected"
	case Untranslated:
		return "untranslated"
	case Backwards:
		return "backwards"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Stale reports whether flows of the class should be deleted.
func (c Class) Stale() bool { return c == Misdirected || c == Untranslated || c == Backwards }
