package conntrack

import (
	"errors"
	"net/netip"
	"strconv"
)

// Change describes a change of services, as far as it decides which flows are stale. It describes
// the services after the change. The table shows how they were before.
type Change struct {
	// Frontends are the frontends that changed. Flows to any other destination are never stale.
	Frontends []Frontend
	// NodeAddrs are the addresses that take node ports: a frontend with an unspecified address is
	// at each of these. Leave out loopback unless node ports answer there.
	NodeAddrs []netip.Addr
	// Zone is the conntrack zone in which services are translated. Flows in other zones are left
	// alone, even if they are the same otherwise.
	Zone uint16
}

// FrontendKey is the address, port and protocol to which clients send.
type FrontendKey struct {
	// Addr is the address. 0.0.0.0 and :: stand for each of [Change.NodeAddrs] of that family,
	// except an address at which another frontend has the same port and protocol.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
	// EndPort is the last port of a range that begins with Port, and zero for one port. A frontend
	// with exactly the port of a flow comes before a range, and a narrower range before a wider one
	// and one that begins later. A range has an address of its own.
	EndPort uint16
}

// text returns "10.0.0.1:53/udp" or "10.0.0.1:10000-20000/udp".
func (k FrontendKey) text() string {
	s := netip.AddrPortFrom(k.Addr, k.Port).String()
	if k.EndPort != 0 {
		s += "-" + strconv.Itoa(int(k.EndPort))
	}
	return s + "/" + k.Protocol.String()
}

// Frontend describes one frontend after the change. It may be of TCP, UDP or SCTP. Leave a frontend
// out to leave its connections alone, or to drain them first.
type Frontend struct {
	Key FrontendKey

	// Endpoints are the endpoints that may keep their flows: those that new flows may go to under
	// any policy of the frontend, and those that get no new flows but still serve, because they
	// terminate or drain. If it is empty, no endpoint may keep flows: the service has none, or the
	// frontend is gone. Port 0 of an endpoint of a range is the port that a flow was sent to; the
	// same holds for Removed.
	Endpoints []netip.AddrPort

	// Removed are the endpoints that the change removed. If it is not nil, only flows to these are
	// stale. If it is nil, flows to any endpoint not in Endpoints are stale. This also finds flows
	// that an interrupted cleaning left behind. An empty list that is not nil protects the frontend
	// against a node port of the same number.
	Removed []netip.AddrPort

	// Untranslated says that flows to the frontend's own address are stale, too. They began when no
	// rule translated them, and last as long as the client keeps sending. Set it if the frontend
	// has endpoints. Do not set it if the frontend was removed, because such flows then belong to
	// another program, nor if the packets are forwarded without translation (IPVS direct routing
	// and tunnels).
	Untranslated bool

	// Backwards says that flows from the frontend's own address and port are stale, too. Such a
	// flow begins with a late answer: an untranslated flow is deleted while an answer of the
	// address's former owner is under way. The answer makes a new flow, and conntrack takes all
	// further packets of the client for replies in it. So set it for another cleaning some time
	// after one that deleted untranslated flows. It has no effect at the addresses of the node,
	// because other flows begin there at any port.
	Backwards bool
}

// ErrBadChange says that a part of a change makes no sense.
var ErrBadChange = errors.New("bad change")

// class is how a flow relates to a change, in one word.
type class string

// The classes. Flows of the last three are stale.
const (
	unrelated    class = "unrelated"    // not to a frontend that changed
	current      class = "current"      // to an endpoint that may have it
	misdirected  class = "misdirected"  // to an endpoint that may not have it
	untranslated class = "untranslated" // to the frontend's own address instead of an endpoint
	// from the frontend's own address: it catches the packets that clients send there
	backwards class = "backwards"
)

// stale reports whether flows of the class should be deleted.
func (c class) stale() bool { return c == misdirected || c == untranslated || c == backwards }
