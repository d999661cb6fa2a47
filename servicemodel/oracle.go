package servicemodel

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// Packet is the first packet of a new connection, as it reaches the node.
type Packet struct {
	// Src and Dst are the source and the destination. The ports are ignored if the protocol has
	// none.
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
	// Protocol is the protocol of the packet, including protocols that services cannot have.
	Protocol Protocol `json:"protocol"`
	// FromThisNode says that a process of the node itself sent the packet, in the host's network
	// namespace.
	FromThisNode bool `json:"fromThisNode,omitzero"`
	// InInterface is the name of the interface on which the packet arrived. It is empty for packets
	// FromThisNode.
	InInterface string `json:"inInterface,omitzero"`
	// Link lists the ranges that the node routes through that interface. They matter if
	// [Rules.MasqueradeNeighbours] is set.
	Link []netip.Prefix `json:"link,omitempty"`
}

// Locality is the list of the node's own addresses, on all interfaces, when a packet arrives.
// Loopback addresses need not be listed.
type Locality []netip.Addr

// Local reports whether a is an address of the node.
func (l Locality) Local(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(l, a) }

// Outcome is the fate of a packet.
type Outcome string

// The outcomes.
const (
	Untouched Outcome = "untouched" // services do not affect it
	Balanced  Outcome = "balanced"  // it reaches one of the candidates
	Rejected  Outcome = "rejected"  // it is answered with a TCP reset or ICMP port unreachable
	Dropped   Outcome = "dropped"   // it gets no answer
)

// Decision says what should happen to a packet according to a table, and why.
type Decision struct {
	Outcome Outcome `json:"outcome"`
	// Candidates are the endpoints that a balanced packet may reach, in slot order.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Frontend is the frontend that the packet matched, or nil.
	Frontend *Frontend `json:"frontend,omitempty"`
	// Origin is the origin of the packet.
	Origin Origins `json:"origin"`
	// Cause is the reason why the packet is rejected or dropped. It is empty for other outcomes.
	Cause Cause `json:"cause,omitzero"`
	// Reason explains the outcome in words, and includes the text of the cause.
	Reason string `json:"reason"`
}

// Candidate is one of the endpoints that a packet may reach.
type Candidate struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	Weight   uint16         `json:"weight"` // its share relative to the other candidates
	// Masquerade says that the endpoint sees an address of the node as the source of the packet.
	Masquerade bool `json:"masquerade,omitzero"`
	// MasqueradeIP is that address if the service sets it ([Service.MasqueradeIPs]).
	MasqueradeIP netip.Addr `json:"masqueradeIP,omitzero"`
}

// verdict returns the frontend's verdict for the packet's origin.
func (d Decision) verdict() Verdict {
	if d.Origin&(FromPods|FromHost) != 0 {
		return d.Frontend.Internal
	}
	return d.Frontend.External
}

// Pool returns the identity of the pool of the candidates, and false if the packet is not sent to a
// pool.
func (d Decision) Pool() (PoolID, bool) {
	if d.Frontend == nil || d.Outcome != Balanced {
		return PoolID{}, false
	}
	return d.Frontend.Pool(d.verdict())
}

// String returns the outcome and its reason, such as "balanced over 10.0.1.7:8080, 10.0.2.9:8080
// masqueraded: cluster IP of default/web, from outside".
func (d Decision) String() string {
	s := string(d.Outcome)
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
		if c.MasqueradeIP.IsValid() {
			s += " as " + c.MasqueradeIP.String()
		}
	}

	return s + ": " + d.Reason
}

// Decide returns the required treatment of the first packet of a new connection. It defines the
// meaning of a table: every backend must make the kernel do exactly this. Decide is pure and
// ignores connections: packets of established connections continue as before. It also ignores
// session affinity: for a client that the kernel remembers, it returns all candidates.
//
// The first rule that applies decides:
//
//  1. A frontend has exactly the packet's destination. If it has sources, and the packet's source
//     is not among them, the packet is dropped. Otherwise the frontend's verdict for the packet's
//     origin applies.
//  2. The destination is a node port: it has the port of a node port frontend, and its address is
//     an address of the node in [Rules.NodePorts] that is not loopback (except IPv4 loopback with
//     [Rules.LocalhostNodePorts]). The verdict of that frontend applies.
//  3. The destination is in a range of ports at its address: as in rule 1, for the first frontend
//     of [Table.RangesAt].
//  4. The destination is in a range of node ports, at an address that rule 2 accepts: as in rule 2.
//  5. The destination is an address of the node and the packet comes from elsewhere: untouched.
//  6. The destination is a cluster IP: rejected, whatever the port and the protocol.
//  7. The destination is in [Rules.ServiceCIDRs]: dropped.
//  8. Untouched.
//
// Only packets of the node itself match frontends at loopback addresses.
//
// If here is nil, the node has no addresses except loopback, so only loopback packets can match
// node ports.
func (t *Table) Decide(p Packet, here Locality) Decision {
	t = t.orEmpty()
	d := Decision{Outcome: Untouched, Origin: t.origin(p, here)}
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
		d.Outcome, d.Cause = Dropped, Cause{Kind: causeNoService, At: p.key()}
		d.Reason = d.Cause.String()
	}

	return d
}

func (p *Packet) key() FrontendKey {
	return FrontendKey{Addr: p.Dst.Addr(), Protocol: p.Protocol, Port: p.Dst.Port()}
}

// otherPort returns the cause that names the service of p's destination address, and its ports
// there.
func (t *Table) otherPort(p Packet) Cause {
	c := Cause{Kind: causeOtherPort, At: p.key()}
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
	at := func(k FrontendKey) bool { return k.Addr == a }
	return values(t.frontends.From(FrontendKey{Addr: a}, at))
}

// origin returns the origin of p. A packet that looks like a packet from a pod is from pods, even
// if its source is an address of the node.
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

// meets returns the frontend that p matches, or nil.
func (t *Table) meets(p Packet, here Locality) *Frontend {
	dst := p.Dst.Addr()
	if !p.Protocol.Valid() || dst.IsUnspecified() || dst.IsLoopback() && !p.FromThisNode {
		return nil
	}
	if f := t.frontends.At(p.key()); f != nil {
		return f
	}
	anywhere, nodePorts := unspecified(FamilyOf(dst)), t.takesNodePorts(dst, here)
	if nodePorts {
		f := t.frontends.At(FrontendKey{Addr: anywhere, Protocol: p.Protocol, Port: p.Dst.Port()})
		if f != nil {
			return f
		}
	}

	l := t.rangesAt(dst, p.Protocol, p.Dst.Port())
	if len(l) == 0 && nodePorts {
		l = t.rangesAt(anywhere, p.Protocol, p.Dst.Port())
	}
	if len(l) > 0 {
		return l[0]
	}
	return nil
}

// takesNodePorts reports whether node ports answer at an address.
func (t *Table) takesNodePorts(a netip.Addr, here Locality) bool {
	if a.IsLoopback() && !(t.rules.LocalhostNodePorts && a.Is4()) {
		return false
	}
	return here.Local(a) && containsAddr(t.rules.NodePorts, a)
}

// atFrontend decides about a packet that matched a frontend.
func (t *Table) atFrontend(d *Decision, p Packet) {
	f, src := d.Frontend, p.Src.Addr()
	d.Reason = f.Kind.String() + " of " + f.Service.String() + ", from " + d.Origin.String()
	if f.Sources != nil && !containsAddr(f.Sources, src) {
		d.because(answered(t.rules.Forbidden, Dropped), Cause{Kind: causeSource, At: f.Key,
			Service: f.Service, Source: src, Others: prefixTexts(f.Sources)})
		return
	}

	switch d.verdict() {
	case Reject:
		d.because(answered(t.rules.NoEndpoints, Rejected), t.Cause(f))
		return
	case Drop:
		d.because(Dropped, t.Cause(f))
		return
	}

	d.Outcome = Balanced
	id, _ := d.Pool()
	pool := t.pools.At(id)
	if pool == nil {
		d.because(Rejected, Cause{Kind: causeUnknown, At: f.Key, Service: f.Service})
		d.Reason += ": the table lacks the pool " + id.String()
		return
	}

	weights := pool.effective()
	for i, s := range pool.Slots {
		addr := s.Endpoint.Addr()
		hairpin := addr == src && t.HasHairpin(src)
		neighbour := t.rules.MasqueradeNeighbours && !p.FromThisNode && containsAddr(p.Link, addr)
		c := Candidate{Endpoint: f.Target(s.Endpoint, p.Dst.Port()), Weight: weights[i]}
		if f.Masquerade&d.Origin != 0 || neighbour {
			c.Masquerade, c.MasqueradeIP = true, f.MasqueradeIP
		}
		c.Masquerade = c.Masquerade || hairpin
		d.Candidates = append(d.Candidates, c)
	}
}

// because records that the packet is refused, and the cause.
func (d *Decision) because(o Outcome, c Cause) {
	d.Outcome, d.Cause = o, c
	d.Reason += ", " + c.String()
}

func containsAddr(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// answered returns the outcome for a packet that gets an answer, or the default answer.
func answered(answer string, byDefault Outcome) Outcome {
	switch answer {
	case "":
		return byDefault
	case answerDrop:
		return Dropped
	}

	return Rejected
}
