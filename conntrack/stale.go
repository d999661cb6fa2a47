package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"
)

// Change is what has to be known of a change of services to tell which flows it left stale. It says
// how things are after the change; how they were before is in the table.
type Change struct {
	// Claims are the frontends that changed. Flows to any other destination are never stale.
	Claims []Claim
	// NodeAddrs are the addresses that take node ports: claims of an unspecified address are about
	// these. Leave out loopback unless node ports answer there.
	NodeAddrs []netip.Addr
	// Zone is the conntrack zone in which services are translated. Flows in other zones are left
	// alone, even if they look the same.
	Zone uint16
}

// Frontend is where clients send to.
type Frontend struct {
	// Addr is the address. 0.0.0.0 and :: stand for each of [Change.NodeAddrs] of that family,
	// except where another claim has that very address with the same port and protocol.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

// String returns "10.0.0.1:53/udp".
func (f Frontend) String() string {
	return netip.AddrPortFrom(f.Addr, f.Port).String() + "/" + f.Protocol.String()
}

// Claim is what is true of one frontend after the change. Claims are of any protocol: whoever wants
// TCP connections to be left alone, or to be drained first, makes no claim for them yet.
type Claim struct {
	Frontend Frontend

	// Backends are the endpoints that may keep the flows they have: all that new flows may go to
	// under any policy of the frontend, and those that get no new flows but are still serving,
	// because they terminate or are drained. Empty says that no endpoint may: the service has none,
	// or the frontend is no more.
	Backends []netip.AddrPort

	// Gone, if not nil, are the only endpoints whose flows are stale: those that the change took
	// away. If nil, every endpoint is that is not in Backends, which also finds what an interrupted
	// cleaning left behind. An empty list that is not nil makes the claim protect its frontend
	// against a node port of the same number.
	Gone []netip.AddrPort

	// Untranslated says that flows which went to the frontend's own address are stale, too. They
	// began when no rule translated them, and last as long as the client keeps sending. Set it
	// where the frontend has endpoints; not where it was removed, when such flows belong to
	// somebody else, and not where the packets are forwarded without translation (IPVS direct
	// routing and tunnels).
	Untranslated bool

	// Backwards says that flows from the frontend's own address and port are stale, too. Such a
	// flow begins with a late answer: an untranslated flow is deleted while the answer of whoever
	// had the address is under way, the answer makes a flow of its own, and what the client sends
	// next is taken for an answer in that. So set it for another cleaning some time after one that
	// deleted untranslated flows. It has no effect on claims of node addresses: these have flows of
	// their own from any port.
	Backwards bool
}

// ErrBadClaim says that a change cannot be made sense of.
var ErrBadClaim = errors.New("bad claim")

// Verdict is what a [Matcher] thinks of a flow.
type Verdict uint8

// The verdicts. The last three mean that the flow is stale.
const (
	Unclaimed    Verdict = iota // it is not to a frontend that changed
	Current                     // it goes where it may go
	Misdirected                 // it goes to an endpoint that may not have it
	Untranslated                // it goes to the frontend's own address instead of an endpoint
	// it comes from the frontend's own address, and catches what is sent there
	Backwards
)

// String returns the verdict in one word.
func (v Verdict) String() string {
	switch v {
	case Unclaimed:
		return "unclaimed"
	case Current:
		return "current"
	case Misdirected:
		return "misdirected"
	case Untranslated:
		return "untranslated"
	case Backwards:
		return "backwards"
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Stale reports whether the flow should be deleted.
func (v Verdict) Stale() bool { return v == Misdirected || v == Untranslated || v == Backwards }

// Matcher tells stale flows from others, in a time that does not depend on the number of claims. It
// holds no kernel resources, does not change, and may be used by many goroutines.
type Matcher struct {
	claims map[Frontend]*claim
	ports  map[portKey]struct{} // of the claims: most flows are told by these
	nodes  map[netip.Addr]struct{}
	zone   uint16

	backwards bool // there are claims that want such flows
}

type portKey struct {
	protocol Protocol
	port     uint16
}

type endpoints map[netip.AddrPort]struct{}

type claim struct {
	backends, gone endpoints
	anyGone        bool
	untranslated   bool
	backwards      bool
}

// NewMatcher returns the matcher for a change. It keeps no part of c. Claims that share a slice of
// endpoints share the memory that the matcher takes for them.
func NewMatcher(c Change) (*Matcher, error) {
	m := &Matcher{
		claims: make(map[Frontend]*claim, len(c.Claims)),
		ports:  map[portKey]struct{}{},
		nodes:  make(map[netip.Addr]struct{}, len(c.NodeAddrs)),
		zone:   c.Zone,
	}
	for i, a := range c.NodeAddrs {
		if !a.IsValid() || a.IsUnspecified() {
			return nil, fmt.Errorf("%w: NodeAddrs[%d]: %s is not the address of a node",
				ErrBadClaim, i, a)
		}
		m.nodes[plainAddr(a)] = struct{}{}
	}
	sets := setMaker{}
	for i := range c.Claims {
		if err := m.add(&c.Claims[i], sets); err != nil {
			return nil, fmt.Errorf("%w: Claims[%d]: %w", ErrBadClaim, i, err)
		}
	}
	return m, nil
}

func (m *Matcher) add(c *Claim, sets setMaker) error {
	f := c.Frontend
	if !f.Addr.IsValid() {
		return errors.New("no Frontend.Addr")
	}
	f.Addr = plainAddr(f.Addr)
	if f.Port == 0 {
		return fmt.Errorf("no Frontend.Port in %s", f)
	}
	if f.Protocol != TCP && f.Protocol != UDP && f.Protocol != SCTP {
		return fmt.Errorf("the Frontend.Protocol of %s is not tcp, udp or sctp", f)
	}
	if _, ok := m.claims[f]; ok {
		return fmt.Errorf("the Frontend %s is claimed twice", f)
	}
	own := &claim{anyGone: c.Gone == nil, untranslated: c.Untranslated, backwards: c.Backwards &&
		!f.Addr.IsUnspecified()}
	var err error
	if own.backends, err = sets.set(c.Backends, f); err != nil {
		return fmt.Errorf("in Backends of %s: %w", f, err)
	}
	if own.gone, err = sets.set(c.Gone, f); err != nil {
		return fmt.Errorf("in Gone of %s: %w", f, err)
	}
	m.claims[f] = own
	m.ports[portKey{f.Protocol, f.Port}] = struct{}{}
	m.backwards = m.backwards || own.backwards
	return nil
}

// setMaker makes sets of endpoints, one for each slice it is given.
type setMaker map[sliceKey]endpoints

type sliceKey struct {
	first *netip.AddrPort
	len   int
}

func (s setMaker) set(list []netip.AddrPort, f Frontend) (endpoints, error) {
	for _, e := range list {
		if !e.IsValid() || e.Port() == 0 || familyOf(e.Addr().Unmap()) != familyOf(f.Addr) {
			return nil, fmt.Errorf("%s is not an endpoint of the frontend's family", e)
		}
	}
	key := sliceKey{unsafe.SliceData(list), len(list)}
	set, ok := s[key]
	if !ok {
		set = make(endpoints, len(list))
		for _, e := range list {
			set[netip.AddrPortFrom(plainAddr(e.Addr()), e.Port())] = struct{}{}
		}
		s[key] = set
	}
	return set, nil
}

// plainAddr returns a as the kernel has it: an IPv4 address is not IPv6, and no address has a zone.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Empty reports whether no flow can be stale: then there is no reason to look at the table.
func (m *Matcher) Empty() bool {
	for _, c := range m.claims {
		if c.finds() {
			return false
		}
	}
	return true
}

// finds reports whether there can be a flow that the claim makes stale.
func (c *claim) finds() bool {
	return c.anyGone || len(c.gone) > 0 || c.untranslated || c.backwards
}

// Judge tells whether the flow is stale. Only addresses, ports, protocol and zone count: IPVS does
// not set [StatusDstNAT], and who answers is in the reply tuple whether the client's address was
// replaced or not.
func (m *Matcher) Judge(f *Flow) Verdict {
	c := m.claim(f)
	switch {
	case f.Zone() != m.zone:
		return Unclaimed
	case c == nil && m.fromFrontend(f) && !f.Translated() && !f.Masqueraded():
		return Backwards
	case c == nil:
		return Unclaimed
	case c.backends.has(f.Reply.Src):
		return Current
	case f.Reply.Src == f.Original.Dst && c.untranslated:
		return Untranslated
	case f.Reply.Src == f.Original.Dst:
		return Current
	case c.anyGone || c.gone.has(f.Reply.Src):
		return Misdirected
	}
	return Current
}

func (s endpoints) has(e netip.AddrPort) bool {
	_, ok := s[e]
	return ok
}

// claim returns the claim on where the flow was sent to, nil if there is none. It needs the
// protocol and the original tuple only.
func (m *Matcher) claim(f *Flow) *claim {
	dst := f.Original.Dst
	if _, ok := m.ports[portKey{f.Protocol, dst.Port()}]; !ok {
		return nil
	}
	if c := m.claims[Frontend{dst.Addr(), dst.Port(), f.Protocol}]; c != nil {
		return c
	}
	if _, ok := m.nodes[dst.Addr()]; !ok {
		return nil
	}
	return m.claims[Frontend{anyAddr(dst.Addr()), dst.Port(), f.Protocol}]
}

// fromFrontend reports whether the flow comes from where a claim does not want flows from. It needs
// the protocol and the original tuple only.
func (m *Matcher) fromFrontend(f *Flow) bool {
	if !m.backwards {
		return false
	}
	src := f.Original.Src
	c := m.claims[Frontend{src.Addr(), src.Port(), f.Protocol}]
	_, node := m.nodes[src.Addr()]
	return c != nil && c.backwards && !node
}

// anyAddr returns the unspecified address of a's family.
func anyAddr(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// dumps returns the requests whose answers hold every flow that may be stale, apart from those of
// the protocols given. They overlap in nothing.
func (m *Matcher) dumps(scan Scan, except ...Protocol) []dumpRequest {
	if scan == ScanNarrow && m.backwards {
		scan = ScanProtocol // the kernel compares one end with one port
	}
	// requests without address, and the one address of their claims
	found := map[dumpRequest]netip.Addr{}
	for f, c := range m.claims {
		if !c.finds() || slices.Contains(except, f.Protocol) {
			continue
		}
		var d dumpRequest
		if scan != ScanAll {
			d.family, d.protocol = familyOf(f.Addr), f.Protocol
		}
		// the kernel compares ports of TCP and UDP only
		if scan == ScanNarrow && f.Protocol != SCTP {
			d.dstPort = f.Port
		}
		if other, ok := found[d]; ok && other != f.Addr {
			found[d] = anyAddr(f.Addr)
		} else {
			found[d] = f.Addr
		}
	}
	var requests []dumpRequest
	for d, addr := range found {
		if scan == ScanNarrow && !addr.IsUnspecified() {
			d.dst = filterable(addr)
		}
		requests = append(requests, d)
	}
	slices.SortFunc(requests, compareRequests)
	return requests
}

// destinations returns all places that flows can have been sent to that may be stale, as flows that
// have no more than that; of some protocols.
func (m *Matcher) destinations(covers func(Protocol) bool) []Flow {
	var all []Flow
	add := func(f Frontend, a netip.Addr) {
		for _, zones := range m.zones() {
			all = append(all, Flow{
				Protocol: f.Protocol,
				Original: Tuple{Dst: netip.AddrPortFrom(a, f.Port), Zone: zones[0]},
				Reply:    Tuple{Zone: zones[1]},
			})
		}
	}
	for f, c := range m.claims {
		switch {
		case !c.finds() || !covers(f.Protocol):
		case !f.Addr.IsUnspecified():
			add(f, f.Addr)
		default:
			for a := range m.nodes {
				// What another claim says of this very place is looked up for that.
				if _, own := m.claims[Frontend{a, f.Port, f.Protocol}]; !own &&
					anyAddr(a) == f.Addr {
					add(f, a)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Original.Dst.Compare(b.Original.Dst),
			cmp.Compare(b.Original.Zone, a.Original.Zone),
			cmp.Compare(b.Reply.Zone, a.Reply.Zone))
	})
	return all
}

// zones returns the zones that the two directions of a flow of the matcher's zone can have.
func (m *Matcher) zones() [][2]uint16 {
	if m.zone == 0 {
		return [][2]uint16{{}}
	}
	return [][2]uint16{{m.zone, m.zone}, {m.zone, 0}, {0, m.zone}}
}

// backwardPorts returns the ports of claims that do not want flows from there, of some protocols;
// nil if there are none.
func (m *Matcher) backwardPorts(covers func(Protocol) bool) (ports *portSet) {
	for f, c := range m.claims {
		if c.backwards && covers(f.Protocol) {
			if ports == nil {
				ports = &portSet{}
			}
			ports[f.Port] = true
		}
	}
	return ports
}
