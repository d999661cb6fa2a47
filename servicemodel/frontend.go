package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// FrontendKey is where a frontend answers: an address, a port and a protocol.
// An unspecified address (0.0.0.0 or ::) stands for any address of the node that takes
// node ports ([Rules.NodePorts]).
type FrontendKey struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

// Family returns the family of the key's address.
func (k FrontendKey) Family() Family { return FamilyOf(k.Addr) }

// NodePort reports whether k stands for any address of the node.
func (k FrontendKey) NodePort() bool { return k.Addr.IsUnspecified() }

// AddrPort returns the address and port of k.
func (k FrontendKey) AddrPort() netip.AddrPort { return netip.AddrPortFrom(k.Addr, k.Port) }

// String returns "10.0.0.1:80/tcp", and "*4:30080/tcp" or "*6:30080/tcp" for a node port.
func (k FrontendKey) String() string {
	p := "/" + k.Protocol.String()
	if !k.NodePort() {
		return k.AddrPort().String() + p
	}
	star := "*4:"
	if k.Family() == IPv6 {
		star = "*6:"
	}
	return star + uitoa(k.Port) + p
}

// Compare orders keys by family, address, port and protocol; node ports come first in their family.
func (k FrontendKey) Compare(o FrontendKey) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// Kind says which field of a service a frontend comes from. It decides nothing but
// who wins when two services claim one key: the lower kind.
type Kind uint8

// The kinds, in the order in which they win a collision: nobody takes a cluster
// IP away by naming it as an external IP (CVE-2020-8554).
const (
	ClusterIP Kind = iota
	LoadBalancer
	ExternalIP
	NodePort
	HostIP
)

// String returns "cluster-ip", "load-balancer", "external-ip", "node-port" or "host-ip".
func (k Kind) String() string {
	switch k {
	case ClusterIP:
		return "cluster-ip"
	case LoadBalancer:
		return "load-balancer"
	case ExternalIP:
		return "external-ip"
	case NodePort:
		return "node-port"
	case HostIP:
		return "host-ip"
	}
	return "kind " + uitoa(uint16(k))
}

// Verdict is what happens to a new connection.
type Verdict uint8

// The verdicts. Balance verdicts name the pool by its scope.
const (
	// Reject answers with ICMP port unreachable: the service has no endpoint anywhere.
	Reject Verdict = iota
	// Drop is silent: the service has endpoints, but none that this traffic may use here.
	Drop
	// BalanceCluster balances over the pool of [ScopeCluster].
	BalanceCluster
	// BalanceLocal balances over the pool of [ScopeLocal].
	BalanceLocal
)

// String returns "reject", "drop", "cluster" or "local".
func (v Verdict) String() string {
	switch v {
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case BalanceCluster:
		return "cluster"
	case BalanceLocal:
		return "local"
	}
	return "verdict " + uitoa(uint16(v))
}

// Balances reports whether v sends to a pool.
func (v Verdict) Balances() bool { return v == BalanceCluster || v == BalanceLocal }

// Origins is a set of the places a packet can come from.
type Origins uint8

// A packet comes from exactly one of these. Without a pod detector, pods count as outside.
const (
	FromPods    Origins = 1 << iota // its source is a pod, as [Rules.LocalPods] says
	FromHost                        // its source is an address of the node (and not a pod)
	FromOutside                     // anything else

	FromAnywhere = FromPods | FromHost | FromOutside
)

// String returns the set's members, such as "host,outside"; "none" and "all" for the empty and full
// set.
func (o Origins) String() string {
	switch o {
	case 0:
		return "none"
	case FromAnywhere:
		return "all"
	}
	var s string
	for i, name := range []string{"pods", "host", "outside"} {
		if o&(1<<i) != 0 {
			if s != "" {
				s += ","
			}
			s += name
		}
	}
	return s
}

// Frontend is one place where the node answers for a service, and everything that was
// decided about it. Frontends are immutable.
type Frontend struct {
	Key     FrontendKey `json:"key"`
	Service PortName    `json:"service"`
	Kind    Kind        `json:"kind"`

	// Internal is the verdict for new connections from pods and from the node itself,
	// External for those from elsewhere. They differ only under external traffic policy Local.
	Internal Verdict `json:"internal"`
	External Verdict `json:"external"`

	// Masquerade are the origins whose source address is replaced by the node's.
	// (Hairpin connections always are, see [Table.Hairpins].)
	Masquerade Origins `json:"masquerade,omitzero"`

	// Affinity is how long a client stays with its endpoint after its last new
	// connection, in whole seconds; zero means no affinity.
	Affinity time.Duration `json:"-"`

	// Sources are the only ranges that may connect, at any verdict; others are silently dropped.
	// Sorted, without ranges inside other ranges. Nil means no restriction.
	Sources []netip.Prefix `json:"sources,omitempty"`
}

// Pool returns the identity of the pool that v, a verdict of f, balances over, and false if it does
// not balance.
func (f *Frontend) Pool(v Verdict) (PoolID, bool) {
	id := PoolID{Service: f.Service, Family: f.Key.Family()}
	if v == BalanceLocal {
		id.Scope = ScopeLocal
	}
	return id, v.Balances()
}

// Equal reports whether f and o are the same in every field.
func (f *Frontend) Equal(o *Frontend) bool {
	return f == o || f.Key == o.Key && f.Service == o.Service && f.Kind == o.Kind &&
		f.Internal == o.Internal && f.External == o.External &&
		f.Masquerade == o.Masquerade && f.Affinity == o.Affinity &&
		slices.Equal(f.Sources, o.Sources)
}

// Scope says which of a service port's endpoints a pool holds.
type Scope uint8

// A service port has at most one pool of each scope and family.
const (
	ScopeCluster Scope = iota // those that may be used from anywhere
	ScopeLocal                // those on this node
)

// String returns "cluster" or "local".
func (s Scope) String() string {
	if s == ScopeLocal {
		return "local"
	}
	return "cluster"
}

// PoolID is the identity of a pool.
type PoolID struct {
	Service PortName `json:"service"`
	Family  Family   `json:"family"`
	Scope   Scope    `json:"scope"`
}

// String returns "namespace/name:port/tcp IPv4 cluster".
func (id PoolID) String() string {
	return id.Service.String() + "/" + id.Service.Protocol.String() + " " + id.Family.String() +
		" " + id.Scope.String()
}

// Compare orders pools by service port, family and scope.
func (id PoolID) Compare(o PoolID) int {
	if c := id.Service.Compare(o.Service); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(id.Family, o.Family), cmp.Compare(id.Scope, o.Scope))
}

// Pool is a list of endpoints and how to choose among them. Pools are immutable and never empty.
//
// The position of an endpoint in the list is its slot. Slots mean nothing but are kept: [Resolve]
// leaves an endpoint where the previous table had it, so that a change touches few slots.
type Pool struct {
	ID         PoolID     `json:"id"`
	Scheduler  Scheduler  `json:"scheduler,omitzero"`
	Forwarding Forwarding `json:"forwarding,omitzero"`
	Slots      []Slot     `json:"slots"`
}

// Slot is one endpoint in a [Pool]. An address occurs in one slot of a pool only.
type Slot struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	// Weight is at least 1. The weights that Resolve gives a pool have no common divisor.
	Weight uint16 `json:"weight"`
}

// Equal reports whether p and o are the same in every field, slots in the same order.
func (p *Pool) Equal(o *Pool) bool {
	return p == o || p.ID == o.ID && p.Scheduler == o.Scheduler && p.Forwarding == o.Forwarding &&
		slices.Equal(p.Slots, o.Slots)
}
