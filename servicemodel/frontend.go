package servicemodel

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// FrontendKey is the address, port and protocol at which a frontend answers. An unspecified address
// (0.0.0.0 or ::) stands for every address of the node that answers node ports ([Rules.NodePorts]).
type FrontendKey struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
	// EndPort is the last port of a range that begins with Port, and zero for a single port.
	EndPort uint16
}

// Family returns the family of the key's address.
func (k FrontendKey) Family() Family { return FamilyOf(k.Addr) }

// NodePort reports whether k is a node port: its address is unspecified.
func (k FrontendKey) NodePort() bool { return k.Addr.IsUnspecified() }

// String returns "10.0.0.1:80/tcp", "10.0.0.1:10000-20000/udp" for a range, and "*4:30080/tcp" or
// "*6:30080/tcp" for a node port.
func (k FrontendKey) String() string {
	end := "/" + k.Protocol.String()
	if k.EndPort != 0 {
		end = "-" + uitoa(k.EndPort) + end
	}
	if !k.NodePort() {
		return netip.AddrPortFrom(k.Addr, k.Port).String() + end
	}
	return star(k.Family()) + uitoa(k.Port) + end
}

// star is the text for any address of the node.
func star(f Family) string {
	if f == IPv6 {
		return "*6:"
	}
	return "*4:"
}

// Compare orders keys by family, address, port, protocol and last port; node ports come first in
// their family.
func (k FrontendKey) Compare(o FrontendKey) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol),
		cmp.Compare(k.EndPort, o.EndPort))
}

// Kind says which field of a service a frontend comes from. It matters only if two services claim
// the same key: the lower kind wins.
type Kind uint8

// The kinds, in the order in which they win a collision. An external IP loses to a cluster IP, so
// no service can take over another service's cluster IP (CVE-2020-8554).
const (
	ClusterIP Kind = iota
	LoadBalancer
	ExternalIP
	NodePort
	HostIP
)

// String returns "cluster-ip", "load-balancer", "external-ip", "node-port" or "host-ip".
func (k Kind) String() string { return nameOf("kind", k, kindNames) }

var kindNames = []string{ClusterIP: "cluster-ip", LoadBalancer: "load-balancer",
	ExternalIP: "external-ip", NodePort: "node-port", HostIP: "host-ip"}

// Verdict is the treatment of a new connection.
type Verdict uint8

// The verdicts. The last two select a pool.
const (
	// Reject answers according to [Rules.NoEndpoints]: the service has no endpoint anywhere.
	Reject Verdict = iota
	// Drop discards packets without an answer: the service has endpoints, but this node may use
	// none of them for this traffic.
	Drop
	// BalanceCluster balances over endpoints on all nodes.
	BalanceCluster
	// BalanceLocal balances over endpoints on this node: the pool with [PoolID.Local].
	BalanceLocal
)

// String returns "reject", "drop", "cluster" or "local".
func (v Verdict) String() string { return nameOf("verdict", v, verdictNames) }

var verdictNames = []string{Reject: "reject", Drop: "drop", BalanceCluster: "cluster",
	BalanceLocal: "local"}

// Balances reports whether v sends packets to a pool.
func (v Verdict) Balances() bool { return v == BalanceCluster || v == BalanceLocal }

// Origins is a set of the origins that a packet can have.
type Origins uint8

// A packet has exactly one of these origins. If the node cannot detect pods, their packets are from
// outside.
const (
	FromPods    Origins = 1 << iota // its source is a pod according to [Rules.LocalPods]
	FromHost                        // its source is an address of the node (and not a pod)
	FromOutside                     // anything else

	FromAnywhere = FromPods | FromHost | FromOutside
)

// String returns the set's members, such as "host,outside"; "none" and "all" for the empty and full
// set.
func (o Origins) String() string { return nameOf("origins", o, originNames) }

var originNames = []string{"none", FromPods: "pods", FromHost: "host",
	FromPods | FromHost: "pods,host", FromOutside: "outside",
	FromPods | FromOutside: "pods,outside", FromHost | FromOutside: "host,outside",
	FromAnywhere: "all"}

// Frontend is an address and port at which the node answers for a service, with all decisions about
// it. Frontends are immutable.
type Frontend struct {
	Key     FrontendKey `json:"key"`
	Service PortName    `json:"service"`
	Kind    Kind        `json:"kind"`

	// Shifted says that the range of Key is mapped to a range of the same length at each endpoint
	// ([ServicePort.TargetPort]). A slot's port is then the first port of that range.
	Shifted bool `json:"shifted,omitzero"`

	// Internal is the verdict for new connections from pods and from the node itself, and External
	// the verdict for connections from elsewhere. They differ only under external traffic policy
	// Local.
	Internal Verdict `json:"internal"`
	External Verdict `json:"external"`

	// Masquerade is the set of origins whose source address the node replaces with its own. Hairpin
	// connections are always masqueraded, see [Table.Hairpins].
	Masquerade Origins `json:"masquerade,omitzero"`
	// AffinityBits is the number of leading bits of an address that identify a client with
	// affinity; zero means the whole address. AffinityService gives a client the same endpoint
	// address at all ports of the service that also have AffinityService.
	AffinityBits    uint8 `json:"affinityBits,omitzero"`
	AffinityService bool  `json:"affinityService,omitzero"`

	// MasqueradePolicy is the policy of the service for this kind of address
	// ([Service.Masquerade]). Masquerade follows from it and from the settings of the node. Empty
	// means the default.
	MasqueradePolicy MasqueradePolicy `json:"masqueradePolicy,omitzero"`

	// MasqueradeIP is the source of masqueraded connections ([Service.MasqueradeIPs]). The zero
	// Addr means an address of the interface through which the packet leaves.
	MasqueradeIP netip.Addr `json:"masqueradeIP,omitzero"`

	// Affinity is how long a client stays with its endpoint after its last new connection, in whole
	// seconds; zero means no affinity.
	Affinity time.Duration `json:"-"`

	// Sources are the only ranges that may connect, whatever the verdict. Packets from elsewhere
	// are dropped silently. The list is sorted, and no range lies inside another. Nil means no
	// restriction.
	Sources []netip.Prefix `json:"sources,omitempty"`
}

// Pool returns the identity of the pool over which verdict v of f balances, and false if v does not
// balance.
func (f *Frontend) Pool(v Verdict) (PoolID, bool) {
	return PoolID{Service: f.Service, Family: f.Key.Family(), Local: v == BalanceLocal},
		v.Balances()
}

// Equal reports whether f and o are the same in every field.
func (f *Frontend) Equal(o *Frontend) bool {
	return f == o || f != nil && o != nil &&
		f.Key == o.Key && f.Service == o.Service && f.Kind == o.Kind && f.Shifted == o.Shifted &&
		f.Internal == o.Internal && f.External == o.External &&
		f.Masquerade == o.Masquerade && f.MasqueradePolicy == o.MasqueradePolicy &&
		f.MasqueradeIP == o.MasqueradeIP &&
		f.Affinity == o.Affinity &&
		f.AffinityBits == o.AffinityBits && f.AffinityService == o.AffinityService &&
		slices.Equal(f.Sources, o.Sources)
}

// PoolID is the identity of a pool.
type PoolID struct {
	Service PortName `json:"service"`
	Family  Family   `json:"family"`
	// Local says that the pool has only endpoints on this node. Otherwise it has endpoints on all
	// nodes.
	Local bool `json:"local,omitzero"`
}

// String returns "namespace/name:port/tcp IPv4 cluster", or "… local".
func (id PoolID) String() string {
	verdict := BalanceCluster
	if id.Local {
		verdict = BalanceLocal
	}
	return id.Service.String() + "/" + id.Service.Protocol.String() + " " + id.Family.String() +
		" " + verdict.String()
}

// Compare orders pools by service port and family, the local pool second.
func (id PoolID) Compare(o PoolID) int {
	c := cmp.Or(id.Service.Compare(o.Service), cmp.Compare(id.Family, o.Family))
	switch {
	case c != 0 || id.Local == o.Local:
		return c
	case id.Local:
		return 1
	}

	return -1
}

// Pool is a list of endpoints and a way to choose among them. Pools are immutable and never empty.
//
// The position of an endpoint in the list is its slot. Slots have no meaning, but [Resolve] keeps
// them: an endpoint keeps its slot from the previous table, so that a change touches few slots.
type Pool struct {
	ID         PoolID     `json:"id"`
	Scheduler  Scheduler  `json:"scheduler,omitzero"`
	Forwarding Forwarding `json:"forwarding,omitzero"`
	Slots      []Slot     `json:"slots"`
	// Units is the table in which [SourceHash] looks up the hash of a client: the slot of each
	// unit, or -1 for no slot. The number of units of a slot is its weight, or a multiple of its
	// weight, with the same factor for all slots. Nil means all units of slot 0, then all units of
	// slot 1, and so on. Like slots, units keep their places from the previous table, so that few
	// clients move when weights or endpoints change. Backends whose choice does not depend on units
	// ignore Units.
	Units []int32 `json:"units,omitempty"`
}

// Slot is one endpoint in a [Pool]. No two slots of a pool have the same address and port.
type Slot struct {
	// Endpoint has port zero if packets keep their ports, see [EndpointPort] and
	// [Frontend.Shifted].
	Endpoint netip.AddrPort `json:"endpoint"`
	// Weight is at least 1. Resolve divides the weights of a pool by their greatest common divisor.
	// In services with a slow start, it multiplies them instead, so that weights can rise in small
	// steps.
	Weight uint16 `json:"weight"`
}

// Equal reports whether p and o are the same in every field, slots in the same order.
func (p *Pool) Equal(o *Pool) bool {
	return p == o || p != nil && o != nil && p.equalButUnits(o) && slices.Equal(p.Units, o.Units)
}

func (p *Pool) equalButUnits(o *Pool) bool {
	return p == o || p.ID == o.ID && p.Scheduler == o.Scheduler && p.Forwarding == o.Forwarding &&
		slices.Equal(p.Slots, o.Slots)
}

func (r Rules) clone() Rules {
	r.LocalPods.CIDRs = slices.Clone(r.LocalPods.CIDRs)
	r.NodePorts = slices.Clone(r.NodePorts)
	r.ServiceCIDRs = slices.Clone(r.ServiceCIDRs)
	return r
}

// clone returns a deep copy of f, nil if f is nil.
func (f *Frontend) clone() *Frontend {
	if f == nil {
		return nil
	}
	own := *f
	own.Sources = slices.Clone(f.Sources)
	return &own
}

// clone returns a deep copy of p, nil if p is nil.
func (p *Pool) clone() *Pool {
	if p == nil {
		return nil
	}
	own := *p
	own.Slots, own.Units = slices.Clone(p.Slots), slices.Clone(p.Units)
	return &own
}

// Rules are the decisions that apply to the whole node, not to a single frontend. They change
// rarely.
type Rules struct {
	// MasqueradeMark is the bit of the packet mark that requests masquerading. It is never zero.
	MasqueradeMark uint32 `json:"masqueradeMark"`
	// OnlyFamily is [Node.OnlyFamily].
	OnlyFamily Family `json:"onlyFamily,omitzero"`
	// LocalPods selects the packets that come from pods ([FromPods]). Its CIDRs are sorted and not
	// nested.
	LocalPods PodDetector `json:"localPods,omitzero"`
	// NodePorts are the ranges, for each family, whose addresses answer node ports. Such an address
	// must also belong to the node, and must not be a loopback address unless LocalhostNodePorts is
	// set. A family without a restriction has only its whole range (/0). A family in which no
	// address answers node ports has no range.
	NodePorts []netip.Prefix `json:"nodePorts,omitempty"`
	// ServiceCIDRs are the ranges in which packets to addresses without a service are dropped. They
	// are sorted and not nested.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// LocalhostNodePorts is [Node.LocalhostNodePorts]: the node can reach its own node ports at the
	// IPv4 loopback addresses in NodePorts.
	LocalhostNodePorts bool `json:"localhostNodePorts,omitzero"`
	// MasqueradeNeighbours is [Node.MasqueradeNeighbours].
	MasqueradeNeighbours bool `json:"masqueradeNeighbours,omitzero"`
	// NoEndpoints and Forbidden are those of [Node], except that an empty NoEndpoints means
	// "reject", and an empty Forbidden means "drop".
	NoEndpoints string `json:"noEndpoints,omitzero"`
	Forbidden   string `json:"forbidden,omitzero"`
}

// Equal reports whether r and o are the same.
func (r Rules) Equal(o Rules) bool {
	return r.MasqueradeMark == o.MasqueradeMark && r.OnlyFamily == o.OnlyFamily &&
		r.LocalhostNodePorts == o.LocalhostNodePorts &&
		r.MasqueradeNeighbours == o.MasqueradeNeighbours &&
		r.NoEndpoints == o.NoEndpoints && r.Forbidden == o.Forbidden &&
		r.LocalPods.equal(o.LocalPods) &&
		slices.Equal(r.NodePorts, o.NodePorts) && slices.Equal(r.ServiceCIDRs, o.ServiceCIDRs)
}
