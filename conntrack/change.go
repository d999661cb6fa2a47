package conntrack

import (
	"errors"
	"net/netip"
	"strconv"
)

// Change describes a change of services, as far as it determines which flows are stale. It
// describes the services after the change; the flows in the conntrack table are still from before.
type Change struct {
	// Frontends are the frontends that changed. Flows to any other destination are never stale.
	Frontends []Frontend
	// NodeAddrs are the addresses that answer node ports: a frontend with an unspecified address is
	// reachable at each of them. Leave out loopback unless node ports answer there.
	NodeAddrs []netip.Addr
	// Zone is the conntrack zone in which services are translated. Flows in other zones are never
	// stale, even if they are otherwise identical.
	Zone uint16
}

// FrontendKey is the address, port and protocol to which clients send.
type FrontendKey struct {
	// Addr is the address. 0.0.0.0 and :: mean each of [Change.NodeAddrs] of that family, except
	// addresses at which another frontend has the same port and protocol.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
	// EndPort is the last port of a range that begins with Port, and zero for a single port. A
	// frontend with exactly the port of a flow takes precedence over a range, and a narrower range
	// over a wider range. Of two equally wide ranges, the range that begins first takes precedence.
	// All of these take precedence over a range at [Change.NodeAddrs].
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

// Frontend describes one frontend after the change. Its protocol is TCP, UDP or SCTP. To leave the
// connections of a frontend alone, or to drain them first, leave the frontend out.
type Frontend struct {
	Key FrontendKey

	// Endpoints are the endpoints that may keep their flows: endpoints that get new flows under any
	// policy of the frontend, and endpoints that get no new flows but still serve, because they
	// terminate or drain. If it is empty, no endpoint may keep flows: the service has no endpoints,
	// or the frontend was removed. At a range, port 0 of an endpoint means the port to which a flow
	// was sent. The same is true for Removed.
	Endpoints []netip.AddrPort

	// Shifted says that the port of each of the Endpoints is the first port of a range as long as
	// Key's: a flow to the second port of Key belongs to the second port of an endpoint, and so on.
	// Removed may contain such endpoints in any case.
	Shifted bool

	// Removed are the endpoints that the change removed. If it is not nil, only flows to these
	// endpoints are stale. If it is nil, flows to any endpoint not in Endpoints are stale,
	// including flows that an interrupted cleanup left behind. An empty, non-nil list protects the
	// frontend from a node port with the same number.
	Removed []netip.AddrPort

	// Untranslated says that flows to the frontend's own address are stale, too. They started when
	// no rule translated them, and last as long as the client keeps sending. Set it if the frontend
	// has endpoints. Do not set it if the frontend was removed, because such flows then belong to
	// another program. Do not set it, either, if the packets are forwarded without translation
	// (IPVS direct routing and tunnels).
	Untranslated bool

	// Backwards says that flows from the frontend's own address and port are stale, too. A late
	// answer creates such a flow: if an untranslated flow is deleted while an answer of the
	// address's previous owner is in flight, the answer starts a new flow, and conntrack treats all
	// further packets of the client as replies in it. So set Backwards for a second cleanup, some
	// time after a cleanup that deleted untranslated flows. It has no effect at the addresses of
	// the node, because the node itself opens flows from any port there.
	Backwards bool
}

// ErrBadChange says that a change contains an invalid item.
var ErrBadChange = errors.New("bad change")

// class says in one word how a change affects a flow.
type class string

// The classes. Flows of the last three are stale.
const (
	unrelated    class = "unrelated"    // the destination is not a frontend that changed
	current      class = "current"      // the endpoint may keep it
	misdirected  class = "misdirected"  // the endpoint may not keep it
	untranslated class = "untranslated" // ends at the frontend's own address, not at an endpoint
	// comes from the frontend's own address: it catches the packets that clients send there
	backwards class = "backwards"
)

// stale reports whether flows of the class should be deleted.
func (c class) stale() bool { return c == misdirected || c == untranslated || c == backwards }
