package servicemodel

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Packet is the first packet of a new connection, as it reaches the node.
type Packet struct {
	// Src and Dst are its addresses. The ports of a protocol that has none are ignored.
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
	// Protocol is its protocol, which need not be one that services have.
	Protocol Protocol `json:"protocol"`
	// FromThisNode says that a process on the node itself (in the host's network namespace) sent
	// it.
	FromThisNode bool `json:"fromThisNode,omitzero"`
	// InInterface is the name of the interface it came in by; it has none if it is FromThisNode.
	InInterface string `json:"inInterface,omitzero"`
	// Link are the ranges that the node has routes to by that interface. They count where
	// [Rules.MasqueradeNeighbours] is set.
	Link []netip.Prefix `json:"link,omitempty"`
}

// Locality is what the node knows of itself when a packet comes: its own addresses, on whatever
// interface. Loopback addresses need not be listed.
type Locality []netip.Addr

// Local reports whether a is an address of the node.
func (l Locality) Local(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(l, a) }

// Outcome is what happens to a packet.
type Outcome uint8

// The outcomes.
const (
	Untouched Outcome = iota // it goes where routing and other programs let it go
	Balanced                 // it reaches one of the candidates
	Rejected                 // it is answered with ICMP port unreachable
	Dropped                  // it disappears
)

// String returns "untouched", "balanced", "rejected" or "dropped".
func (o Outcome) String() string {
	switch o {
	case Untouched:
		return "untouched"
	case Balanced:
		return "balanced"
	case Rejected:
		return "rejected"
	case Dropped:
		return "dropped"
	}
	return "outcome " + uitoa(uint16(o))
}

// Decision is what a table says must happen to a packet, and why.
type Decision struct {
	Outcome Outcome `json:"outcome"`
	// Candidates are the endpoints it may reach, if it is balanced, in the order of their slots.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Frontend is the one it met, nil if none.
	Frontend *Frontend `json:"frontend,omitempty"`
	// Origin is where it was taken to come from.
	Origin Origins `json:"origin"`
	// Cause is why it is rejected or dropped; of other outcomes it is [NoCause].
	Cause Cause `json:"cause,omitzero"`
	// Reason says in words why, with the words of the cause.
	Reason string `json:"reason"`
}

// Candidate is an endpoint that a packet may reach.
type Candidate struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	Weight   uint16         `json:"weight"` // its share relative to the other candidates
	// Masquerade says that the endpoint sees an address of the node as the source, rather than the
	// packet's own.
	Masquerade bool `json:"masquerade,omitzero"`
}

// verdict is the one of the frontend that holds for the packet's origin.
func (d Decision) verdict() Verdict {
	if d.Origin&(FromPods|FromHost) != 0 {
		return d.Frontend.Internal
	}
	return d.Frontend.External
}

// Pool returns the identity of the pool that the candidates are from, and false if the packet is
// not sent to a pool.
func (d Decision) Pool() (PoolID, bool) {
	if d.Frontend == nil || d.Outcome != Balanced {
		return PoolID{}, false
	}
	return d.Frontend.Pool(d.verdict())
}

// String returns what happens and why, such as "balanced over 10.0.1.7:8080, 10.0.2.9:8080
// masqueraded: cluster IP of default/web, from outside".
func (d Decision) String() string {
	s := d.Outcome.String()
	for i, c := range d.Candidates {
		if i == 0 {
			s += " over "
		} else {
			s += ", "
		}
		s += Slot{Endpoint: c.Endpoint, Weight: c.Weight}.String()
		if c.Masquerade {
			s += " masqueraded"
		}
	}
	return s + ": " + d.Reason
}

// Decide returns what must happen to the first packet of a new connection. It is the meaning of a
// table: every backend must make the kernel do just that. It is pure, and knows no connections:
// packets of established ones go on as before. Session affinity is no part of it either: it picks,
// for a client it remembers, one of the candidates.
//
// The rules, the first that applies:
//
//  1. A frontend holds the packet's very destination. The packet is dropped if the frontend has
//     sources and its own is not among them; otherwise the frontend's verdict for its origin holds.
//  2. The destination is an address of the node in [Rules.NodePorts], and not loopback unless
//     [Rules.LocalhostNodePorts] lets IPv4 answer there, and a node port frontend holds its port:
//     that frontend's verdict.
//  3. The destination is an address of the node and the packet comes from elsewhere: untouched.
//  4. The destination is a cluster IP: rejected, whatever the port and the protocol.
//  5. The destination is in [Rules.ServiceCIDRs]: dropped.
//  6. Untouched.
//
// Frontends at loopback addresses are for packets of the node itself. Others meet none.
//
// With here nil, no address but loopback is one of the node, and node ports are met there only.
func (t *Table) Decide(p Packet, here Locality) Decision {
	t = t.orEmpty()
	d := Decision{Origin: t.origin(p, here)}
	d.Frontend = t.meets(p, here).clone()
	if d.Frontend != nil {
		t.atFrontend(&d, p)
		return d
	}
	dst := p.Dst.Addr()
	toItself := here.Local(dst) && !p.FromThisNode
	switch {
	case !t.HasClusterIP(dst) && !containsAddr(t.rules.ServiceCIDRs, dst):
		d.Reason = "no service answers there"
	case toItself:
		d.Reason = "the address is the node's own"
	case t.HasClusterIP(dst):
		d.Outcome, d.Cause = Rejected, t.otherPort(p)
		d.Reason = d.Cause.String()
	default:
		d.Outcome, d.Cause = Dropped, Cause{Kind: CauseNoService, At: p.key()}
		d.Reason = d.Cause.String()
	}
	return d
}

// key is the frontend that p asks for.
func (p *Packet) key() FrontendKey {
	return FrontendKey{Addr: p.Dst.Addr(), Protocol: p.Protocol, Port: p.Dst.Port()}
}

// otherPort says which service has the address that p is for, and which ports there.
func (t *Table) otherPort(p Packet) Cause {
	c := Cause{Kind: CauseOtherPort, At: p.key()}
	for f := range t.frontendsAt(p.Dst.Addr()) {
		if c.Service.Name == (Name{}) || f.Kind == ClusterIP {
			c.Service.Name = f.Service.Name
		}
		c.Others = append(c.Others, numbered(f.Key))
	}
	return c
}

// frontendsAt yields the frontends at an address.
func (t *Table) frontendsAt(a netip.Addr) iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		for k, f := range t.frontends.From(FrontendKey{Addr: a}) {
			if k.Addr != a || !yield(f) {
				return
			}
		}
	}
}

// origin tells where p comes from. What looks like a pod is one, also where its source is the
// node's.
func (t *Table) origin(p Packet, here Locality) Origins {
	pods := t.rules.LocalPods
	switch {
	case containsAddr(pods.CIDRs, p.Src.Addr()),
		pods.Bridge != "" && p.InInterface == pods.Bridge,
		pods.InterfacePrefix != "" && strings.HasPrefix(p.InInterface, pods.InterfacePrefix):
		return FromPods
	case here.Local(p.Src.Addr()):
		return FromHost
	}
	return FromOutside
}

// meets returns the frontend that p is for, nil if none.
func (t *Table) meets(p Packet, here Locality) *Frontend {
	dst := p.Dst.Addr()
	if !p.Protocol.Valid() || dst.IsUnspecified() || dst.IsLoopback() && !p.FromThisNode {
		return nil
	}
	if f := t.frontend(p.key()); f != nil {
		return f
	}
	if dst.IsLoopback() && !(t.rules.LocalhostNodePorts && dst.Is4()) {
		return nil
	}
	if !here.Local(dst) || !containsAddr(t.rules.NodePorts, dst) {
		return nil
	}
	return t.frontend(FrontendKey{Addr: unspecified(FamilyOf(dst)), Protocol: p.Protocol,
		Port: p.Dst.Port()})
}

// atFrontend decides about a packet that met a frontend.
func (t *Table) atFrontend(d *Decision, p Packet) {
	f, src := d.Frontend, p.Src.Addr()
	d.Reason = f.Kind.String() + " of " + f.Service.String() + ", from " + d.Origin.String()
	if f.Sources != nil && !containsAddr(f.Sources, src) {
		d.because(Dropped, Cause{Kind: CauseSource, At: f.Key, Service: f.Service, Source: src,
			Others: prefixTexts(f.Sources)})
		return
	}
	switch d.verdict() {
	case Reject:
		d.because(Rejected, t.Cause(f))
		return
	case Drop:
		d.because(Dropped, t.Cause(f))
		return
	}
	d.Outcome = Balanced
	id, _ := d.Pool()
	pool := t.pool(id)
	if pool == nil {
		d.because(Rejected, Cause{Kind: CauseUnknown, At: f.Key, Service: f.Service})
		d.Reason += ": the table lacks the pool " + id.String()
		return
	}
	for _, s := range pool.Slots {
		addr := s.Endpoint.Addr()
		hairpin := addr == src && t.HasHairpin(src)
		neighbour := t.rules.MasqueradeNeighbours && !p.FromThisNode && containsAddr(p.Link, addr)
		d.Candidates = append(d.Candidates, Candidate{s.Endpoint, s.Weight,
			f.Masquerade&d.Origin != 0 || hairpin || neighbour})
	}
}

// because notes that the packet is refused, and why.
func (d *Decision) because(o Outcome, c Cause) {
	d.Outcome, d.Cause = o, c
	d.Reason += ", " + c.String()
}

func containsAddr(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
