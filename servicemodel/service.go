package servicemodel

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Service is a service that the kernel should balance.
//
// Fields with the same name as a Kubernetes field have the same meaning. kernlb itself does not
// depend on Kubernetes.
type Service struct {
	// Name identifies the service.
	Name Name `json:"name"`

	// Ports are the ports that the service answers on, at each of its addresses.
	Ports []ServicePort `json:"ports,omitempty"`

	// ClusterIPs are the addresses inside the cluster, at most one per family. Endpoints serve only
	// addresses of their own family.
	//
	// Cluster IPs determine the families of the service. If all cluster IPs are of one family, the
	// node does not balance addresses and node ports of the other family, as in Kubernetes. A
	// service without cluster IPs, which Kubernetes does not have, has both families. Its node
	// ports answer in each family in which it has an endpoint or another address, or in both
	// families if it has neither.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`

	// ExternalIPs are further addresses at which clients reach the service from outside.
	ExternalIPs []netip.Addr `json:"externalIPs,omitempty"`

	// LoadBalancerIPs are addresses to which an external load balancer sends traffic.
	LoadBalancerIPs []LoadBalancerIP `json:"loadBalancerIPs,omitempty"`

	// HostIPs are addresses of the node itself at which the ports are published, like a hostPort
	// with a hostIP. Clients use them like ExternalIPs. IPv4 loopback addresses are allowed: they
	// answer only to the node itself, and only if [Node.LocalhostNodePorts] is set. ::1 is not
	// allowed, because Linux routes no packet from ::1 to an interface other than loopback and has
	// no sysctl to change this.
	//
	// To publish a port at all addresses of the node, use a node port.
	HostIPs []netip.Addr `json:"hostIPs,omitempty"`

	// LoadBalancerSourceRanges restricts the clients of LoadBalancerIPs, separately for each
	// family. A family is unrestricted if it has no range here, or its whole range (/0). The ranges
	// never restrict other addresses or node ports. For other addresses, use Clients.
	LoadBalancerSourceRanges []netip.Prefix `json:"loadBalancerSourceRanges,omitempty"`

	// Clients are rules that say which clients may connect, at addresses of every kind. Without
	// rules, all clients may connect that LoadBalancerSourceRanges allow.
	Clients []ClientRule `json:"clients,omitempty"`

	// SessionAffinity keeps a client on its first endpoint.
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitzero"`

	// InternalTrafficPolicy selects the endpoints that serve ClusterIPs.
	InternalTrafficPolicy TrafficPolicy `json:"internalTrafficPolicy,omitzero"`

	// ExternalTrafficPolicy selects the endpoints that serve clients outside the cluster at all
	// other addresses and at node ports. Under Local, clients keep their source addresses.
	ExternalTrafficPolicy TrafficPolicy `json:"externalTrafficPolicy,omitzero"`

	// Prefer says which ready endpoints get the traffic under policy Cluster. "node" prefers
	// endpoints on this node, then endpoints in the node's zone, then all others. "zone" prefers
	// endpoints in the node's zone, then all others. Empty, the default, prefers none.
	//
	// A level of endpoints keeps all its traffic as long as at least 10/14 of its endpoints are
	// ready. With fewer, it keeps ready/all × 1.4 of the traffic, and the rest is sent to the next
	// levels by the same rule (Envoy's priority levels). A quiesced endpoint is not ready, and a
	// terminating endpoint is not counted at all. If topology hints decide, the preference has no
	// effect.
	//
	// The shares become weights, so Prefer cannot be combined with schedulers that do not follow
	// weights: "rr", "lc", "dh", "fo" and "ovf".
	Prefer string `json:"prefer,omitzero"`

	// HealthCheckNodePort, if not zero, is the TCP port on which an external load balancer asks
	// whether this node has local endpoints ([Table.HealthChecks]). It has an effect only with
	// ExternalTrafficPolicy Local. In that case, it must differ from all node ports of the service.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitzero"`

	// SilentEndpoints says how to treat endpoints that do not answer. Only programs that detect
	// such endpoints use it, for example with a follower of package dataplane/silence. Parts refuse
	// [SilentEject] ([State.ValidateUnattended]).
	SilentEndpoints SilentPolicy `json:"silentEndpoints,omitzero"`

	// Masquerade selects the clients whose source address is hidden from endpoints. The zero value
	// behaves like kube-proxy.
	Masquerade Masquerade `json:"masquerade,omitzero"`

	// MasqueradeIPs are the addresses that endpoints see as the source of masqueraded connections,
	// at most one per family. In a family without such an address, endpoints see an address of the
	// interface through which the packet leaves. The unspecified address means the service address
	// to which the client connects; it has no effect at node ports and loopback addresses. If an
	// endpoint connects to itself, it sees this source if the connection would be masqueraded
	// anyway, and otherwise an address of the interface.
	//
	// The endpoints' answers to these addresses must come back through this node.
	MasqueradeIPs []netip.Addr `json:"masqueradeIPs,omitempty"`

	// SlowStart is the time in which an endpoint that becomes ready reaches its full weight, in
	// whole seconds: at least 5 s, at most a day. An endpoint begins with a tenth of its weight.
	// Zero means that an endpoint has its full weight at once.
	//
	// The weight is within 5 % of a straight line, and changes at most ten times a second. If no
	// endpoint was ready before, the first endpoints to become ready get their full weights,
	// because no other endpoint can take their connections. An endpoint that was not ready for a
	// while starts over. A lower weight takes effect at once.
	//
	// A program that restarts continues from the weights in the kernel. While no program runs, slow
	// starts do not continue. SlowStart can be combined with the same schedulers as
	// [Service.Prefer]. It needs an engine: Parts refuse it.
	SlowStart time.Duration `json:"-"`

	// Scheduler selects how endpoints are chosen. The zero value is the backend's default: random
	// for nftables and iptables, weighted round robin for IPVS. [Scheduler] lists the schedulers of
	// each backend.
	Scheduler Scheduler `json:"scheduler,omitzero"`

	// Forwarding says how packets reach an endpoint. The zero value is NAT.
	Forwarding Forwarding `json:"forwarding,omitzero"`

	// Connections says what happens to connections to endpoints that the service loses.
	Connections ConnectionPolicy `json:"connections,omitzero"`
}

// ServicePort is one port of a [Service].
type ServicePort struct {
	// Name tells the ports of a service apart, and selects the endpoints' port. It may be empty if
	// the service has only one port. It consists of the same characters as a [Name].
	Name string `json:"name,omitzero"`
	// Protocol is TCP, UDP or SCTP.
	Protocol Protocol `json:"protocol"`
	// Port is the port at the service's addresses.
	Port uint16 `json:"port"`
	// EndPort, if not zero, makes the service port a range: it answers at all ports from Port to
	// EndPort, as in a NetworkPolicy. A range from 1 to 65535 means all ports.
	//
	// If several services claim the same port of an address, an exact port or node port takes
	// precedence over a range, and a narrower range over a wider range. The names of the services
	// and the kinds of the addresses do not matter. Of two ranges with the same width, the range
	// that begins earlier takes precedence. All of these take precedence over a range of node
	// ports. A range that loses some of its ports keeps the others. Equal ranges conflict like
	// equal ports.
	EndPort uint16 `json:"endPort,omitzero"`
	// TargetPort, if not zero, maps a range to a range of the same length at the endpoints: packets
	// to Port go to TargetPort, packets to Port+1 to TargetPort+1, and so on. Only ranges can have
	// a TargetPort. Their endpoints have port 0 or TargetPort.
	TargetPort uint16 `json:"targetPort,omitzero"`
	// NodePort, if not zero, answers at the node's own addresses (see [Node.NodePortAddresses]).
	// For a range, it is the first of a range of node ports with the same length. If packets keep
	// their ports at an endpoint, they arrive there at the node port's number, so NodePort should
	// equal Port. With a TargetPort, packets to NodePort go to TargetPort.
	NodePort uint16 `json:"nodePort,omitzero"`
}

// LoadBalancerIP is an address of a load balancer.
type LoadBalancerIP struct {
	Addr netip.Addr `json:"addr"`
	// Proxy says that the load balancer rewrites the destination of packets (ipMode Proxy of
	// KEP-1860), so the node does not balance the address. Otherwise packets arrive with Addr as
	// their destination, and the node balances them.
	Proxy bool `json:"proxy,omitzero"`
}

// TrafficPolicy selects the endpoints that a node may use for a service.
type TrafficPolicy string

const (
	// PolicyCluster is the default: endpoints anywhere in the cluster.
	PolicyCluster TrafficPolicy = ""
	// PolicyLocal uses endpoints on this node only.
	PolicyLocal TrafficPolicy = "Local"
)

// UnmarshalText also accepts "Cluster" for [PolicyCluster], as Kubernetes writes it.
func (p *TrafficPolicy) UnmarshalText(text []byte) error {
	*p = TrafficPolicy(wordOr(string(text), "Cluster"))
	return nil
}

// wordOr returns the word, or "" if it is the word for the default.
func wordOr(word, byDefault string) string {
	if word == byDefault {
		return ""
	}
	return word
}

// parseWord returns the word that equals s, or "" if s is the word for the default.
func parseWord[T ~string](s string, byDefault T, words []T) (T, error) {
	switch {
	case s == string(byDefault):
		return "", nil
	case slices.Contains(words, T(s)):
		return T(s), nil
	}

	return "", errors.New("must be " + oneOf(slices.Concat([]T{byDefault}, words)))
}

// SessionAffinity keeps a client, identified by its address, on one endpoint.
type SessionAffinity struct {
	// ClientIP switches affinity on.
	ClientIP bool
	// Timeout is the time that a client is remembered after its last new connection, in whole
	// seconds: at least one, at most a day. Zero means three hours.
	Timeout time.Duration
	// Bits4 and Bits6 are the numbers of leading bits of an IPv4 and an IPv6 address that identify
	// a client: addresses with the same leading bits count as one client. Zero means the whole
	// address.
	Bits4, Bits6 uint8
	// WholeService gives a client the same endpoint address at all ports of the service. Without
	// it, the ports remember their clients independently. A port that has no endpoint with the
	// remembered address chooses one of its own endpoints.
	WholeService bool
}

// Default and maximum of [SessionAffinity.Timeout], as in Kubernetes
// (DefaultClientIPServiceAffinitySeconds, MaxClientIPServiceAffinitySeconds).
const (
	defaultAffinityTimeout = 10800 * time.Second
	maxAffinityTimeout     = 86400 * time.Second
)

// Scheduler is a way of choosing an endpoint, named as in IPVS (include/net/ip_vs.h; ipvsadm(8)),
// or "random". A backend refuses schedulers that it lacks: IPVS has all except random; nftables has
// random, rr, wrr, sh, mh and, with [Endpoint.Share], lc and wlc; iptables has random, rr and sh.
//
// As in IPVS, rr and lc treat all endpoints alike, whatever their weights. dh, fo and ovf do not
// follow the weights, either. The other schedulers follow the weights.
//
// The schedulers that hash the client, [SourceHash] and [Maglev], accept two options, in this
// order: "sh+port", "mh+fallback", "mh+port+fallback" (IP_VS_SVC_F_SCHED_SH_PORT and _FALLBACK,
// IP_VS_SVC_F_SCHED_MH_PORT and _FALLBACK in include/uapi/linux/ip_vs.h). With port they also hash
// the client's port, so that the connections of one client are spread. With fallback they use a
// different endpoint if the chosen endpoint takes no new connections, for example while it drains.
// Without it, these clients are refused. In nftables, the option has no effect, because an endpoint
// that takes no new connections is in no pool.
type Scheduler string

// The schedulers. All except random are modules of IPVS in Linux, ip_vs_*.
const (
	SchedulerDefault Scheduler = ""       // the backend's default
	Random           Scheduler = "random" // at random, in proportion to weight
	RoundRobin       Scheduler = "rr"
	WeightedRR       Scheduler = "wrr"
	LeastConn        Scheduler = "lc"
	WeightedLC       Scheduler = "wlc"
	LocalityLC       Scheduler = "lblc"
	LocalityLCR      Scheduler = "lblcr"
	SourceHash       Scheduler = "sh"
	DestHash         Scheduler = "dh"
	ShortestDelay    Scheduler = "sed"
	NeverQueue       Scheduler = "nq"
	Maglev           Scheduler = "mh"
	Failover         Scheduler = "fo"
	Overflow         Scheduler = "ovf"
)

// schedulers are the IPVS schedulers without options, and hashing the schedulers with options.
var (
	schedulers = []Scheduler{RoundRobin, WeightedRR, LeastConn, WeightedLC, LocalityLC, LocalityLCR,
		DestHash, ShortestDelay, NeverQueue, Failover, Overflow}
	hashing = []Scheduler{SourceHash, Maglev}
)

// Options of [SourceHash] and [Maglev], see [Scheduler].
const (
	hashPort     = "+port"
	hashFallback = "+fallback"
)

// ParseScheduler returns the scheduler of a name, such as "wrr" or "mh+port".
func ParseScheduler(s string) (Scheduler, error) {
	if r := Scheduler(s); r != SchedulerDefault && r.known() {
		return r, nil
	}
	return SchedulerDefault, fmt.Errorf("must be random or a scheduler of IPVS: %s; %s, with "+
		"+port, +fallback or both", list(schedulers, ", "), list(hashing, " or "))
}

// weighs reports whether the shares of endpoints follow their weights.
func (s Scheduler) weighs() bool {
	return !slices.Contains([]Scheduler{RoundRobin, LeastConn, DestHash, Failover, Overflow}, s)
}

// Even reports whether the scheduler treats all endpoints alike, whatever their weights.
func (s Scheduler) Even() bool { return s == RoundRobin || s == LeastConn }

func list[T ~string](l []T, separator string) string {
	var b strings.Builder
	for i, s := range l {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(string(s))
	}

	return b.String()
}

// Split returns the scheduler without options, and whether it has each option.
func (s Scheduler) Split() (name Scheduler, port, fallback bool) {
	rest, fallback := strings.CutSuffix(string(s), hashFallback)
	rest, port = strings.CutSuffix(rest, hashPort)
	return Scheduler(rest), port, fallback
}

// Forwarding is the method of passing a packet to its endpoint (IP_VS_CONN_F_FWD_MASK in
// include/uapi/linux/ip_vs.h).
type Forwarding string

const (
	// ForwardNAT is the default, and the only method outside IPVS. It rewrites the destination and,
	// if needed, the source.
	ForwardNAT Forwarding = ""
	// ForwardDirect sends the packet unchanged to the endpoint's link-layer address (direct
	// routing).
	ForwardDirect Forwarding = "direct"
	// ForwardTunnel sends the packet unchanged inside an IP-in-IP tunnel.
	ForwardTunnel Forwarding = "tunnel"
)

// UnmarshalText also accepts "nat" for [ForwardNAT].
func (f *Forwarding) UnmarshalText(text []byte) error {
	*f = Forwarding(wordOr(string(text), "nat"))
	return nil
}

// ParseForwarding returns the forwarding of a name: "nat", "direct" or "tunnel".
func ParseForwarding(s string) (Forwarding, error) { return parseWord(s, "nat", forwardings) }

// forwardings are the methods except the default.
var forwardings = []Forwarding{ForwardDirect, ForwardTunnel}

// SilentPolicy says what happens to endpoints that do not answer new connections of clients.
type SilentPolicy uint8

const (
	// SilentDefault is the default: the program's policy for all services applies.
	SilentDefault SilentPolicy = iota
	// SilentEject removes endpoints that do not answer TCP connections until they answer again. It
	// needs [ForwardNAT], because otherwise answers do not pass this node.
	SilentEject
	// SilentStay keeps silent endpoints in use.
	SilentStay
)

// silentPolicies are the words for the policies.
var silentPolicies = []string{"default", "eject", "stay"}

// String returns "default", "eject" or "stay".
func (p SilentPolicy) String() string {
	if int(p) >= len(silentPolicies) {
		return fmt.Sprintf("SilentPolicy(%d)", uint8(p))
	}
	return silentPolicies[p]
}

// MarshalText returns the policy's String.
func (p SilentPolicy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts the same words as [ParseSilentPolicy].
func (p *SilentPolicy) UnmarshalText(text []byte) (err error) {
	*p, err = ParseSilentPolicy(string(text))
	return err
}

// ParseSilentPolicy parses "default", "eject" or "stay".
func ParseSilentPolicy(s string) (SilentPolicy, error) {
	i := slices.Index(silentPolicies, s)
	if i < 0 {
		return SilentDefault, errors.New("must be " + oneOf(silentPolicies))
	}
	return SilentPolicy(i), nil
}

// MasqueradePolicy selects the connections whose source becomes the node's address, so that
// endpoints answer to the node. Two kinds of connections are always masqueraded: connections from
// an endpoint to itself, and, with [Node.LocalhostNodePorts], connections from the node itself to
// IPv4 node ports and loopback addresses.
type MasqueradePolicy string

const (
	// MasqueradeDefault is the default, and works like kube-proxy. At cluster IPs it is
	// MasqueradeNotPods if the node can detect pods, else MasqueradeNever; [Node.MasqueradeAll]
	// makes it MasqueradeAlways. At all other addresses it is MasqueradeAlways, or MasqueradeHost
	// with external traffic policy Local.
	MasqueradeDefault MasqueradePolicy = ""
	// MasqueradeAlways masquerades all clients.
	MasqueradeAlways MasqueradePolicy = "always"
	// MasqueradeNotPods masquerades all clients except pods ([Node.LocalPods]).
	MasqueradeNotPods MasqueradePolicy = "not-pods"
	// MasqueradeHost masquerades only the node itself.
	MasqueradeHost MasqueradePolicy = "host"
	// MasqueradeNever masquerades no client. The endpoints' answers must then come back through
	// this node by other means: by routing, or because the endpoints are on this node.
	MasqueradeNever MasqueradePolicy = "never"
)

// UnmarshalText also accepts "default" for [MasqueradeDefault].
func (p *MasqueradePolicy) UnmarshalText(text []byte) error {
	*p = MasqueradePolicy(wordOr(string(text), "default"))
	return nil
}

// masqueradePolicies are the policies except the default.
var masqueradePolicies = []MasqueradePolicy{MasqueradeAlways, MasqueradeNotPods, MasqueradeHost,
	MasqueradeNever}

// ParseMasqueradePolicy parses "default", "always", "not-pods", "host" or "never".
func ParseMasqueradePolicy(s string) (MasqueradePolicy, error) {
	return parseWord(s, "default", masqueradePolicies)
}

// Masquerade has a policy for each kind of address at which a service answers.
type Masquerade struct {
	ClusterIPs      MasqueradePolicy `json:"clusterIPs,omitzero"`
	LoadBalancerIPs MasqueradePolicy `json:"loadBalancerIPs,omitzero"`
	ExternalIPs     MasqueradePolicy `json:"externalIPs,omitzero"`
	HostIPs         MasqueradePolicy `json:"hostIPs,omitzero"`
	NodePorts       MasqueradePolicy `json:"nodePorts,omitzero"`
}

// policies returns the policies by the kind of address, and masqueradeFields their fields.
func (m *Masquerade) policies() [HostIP + 1]MasqueradePolicy {
	return [...]MasqueradePolicy{ClusterIP: m.ClusterIPs, LoadBalancer: m.LoadBalancerIPs,
		ExternalIP: m.ExternalIPs, NodePort: m.NodePorts, HostIP: m.HostIPs}
}

var masqueradeFields = [...]string{ClusterIP: "masquerade.clusterIPs",
	LoadBalancer: "masquerade.loadBalancerIPs", ExternalIP: "masquerade.externalIPs",
	NodePort: "masquerade.nodePorts", HostIP: "masquerade.hostIPs"}

// MasqueradeAt returns the same policy for all kinds of addresses.
func MasqueradeAt(p MasqueradePolicy) Masquerade { return Masquerade{p, p, p, p, p} }

// Endpoint is one address that serves a service.
//
// If several endpoints of a service have the same address and port, only one of them is used:
// preferably a ready endpoint, then one that terminates but still serves. Otherwise, an endpoint
// that is not terminating is preferred, then the first in the list.
type Endpoint struct {
	// Addr is the address at which the endpoint listens. Its family decides which of the service's
	// addresses it serves.
	Addr netip.Addr `json:"addr"`

	// Ports are the endpoint's ports. A service port uses the endpoint port with its name and
	// protocol. An endpoint without such a port does not serve the service port.
	Ports []EndpointPort `json:"ports,omitempty"`

	// Condition says whether the endpoint takes connections. The zero value is [Ready].
	Condition Condition `json:"condition,omitzero"`

	// Node is the name of the node on which the endpoint runs, empty if unknown. The endpoint is
	// local if the name equals [Node.Name].
	Node string `json:"node,omitzero"`
	// Zone is the zone in which the endpoint runs. Only [Service.Prefer] uses it.
	Zone string `json:"zone,omitzero"`
	// ForNodes and ForZones are topology hints: the nodes and zones that should use this endpoint.
	ForNodes []string `json:"forNodes,omitempty"`
	ForZones []string `json:"forZones,omitempty"`

	// Weight is the endpoint's share relative to the other endpoints. Zero means 1.
	Weight uint16 `json:"weight,omitzero"`

	// Share is the rate of new connections that the endpoint should get now, relative to the other
	// endpoints, under [LeastConn] and [WeightedLC] in nftables. nftables does not count
	// connections: a program counts them, and feeds shares back. Zero means the average share of
	// the other endpoints, in proportion to weight. If all shares are zero, the pool keeps the
	// shares that it has in the kernel; initially they follow the weights. Shares are rounded to
	// units of a power of two, at least 64, so that few clients move at a time; shares that equal
	// the weights are exact. Other schedulers and backends ignore shares.
	Share uint16 `json:"share,omitzero"`
}

// Condition says whether an [Endpoint] takes connections.
type Condition string

const (
	// Ready is the default: the endpoint takes new connections.
	Ready Condition = ""
	// NotReady endpoints take no connections, and keep no UDP flows.
	NotReady Condition = "not-ready"
	// Serving endpoints are shutting down, but can still serve. They get new connections only if no
	// endpoint is ready. In Kubernetes they are serving and terminating.
	Serving Condition = "serving"
	// Terminating endpoints are shutting down, and no longer serve.
	Terminating Condition = "terminating"
	// Quiesced endpoints take no new connections, not even as a fallback. Other programs express
	// this as a weight of 0. Their connections and UDP flows are treated like those of Serving
	// endpoints ([ConnectionPolicy]). Clients that have affinity to them get a different endpoint.
	Quiesced Condition = "quiesced"
)

// String returns "ready", "not-ready", "serving", "terminating" or "quiesced".
func (c Condition) String() string { return cmp.Or(string(c), "ready") }

// Unready returns the condition of an endpoint with condition c that does not answer:
// [Terminating] if it terminates, otherwise [NotReady].
func (c Condition) Unready() Condition {
	if c == Serving || c == Terminating {
		return Terminating
	}
	return NotReady
}

// UnmarshalText also accepts "ready" for [Ready].
func (c *Condition) UnmarshalText(text []byte) error {
	*c = Condition(wordOr(string(text), "ready"))
	return nil
}

// conditions are the conditions except the default.
var conditions = []Condition{NotReady, Serving, Terminating, Quiesced}

// EndpointPort is a port on which an [Endpoint] listens. It serves the service ports with its name
// and protocol.
type EndpointPort struct {
	Name     string   `json:"name,omitzero"`
	Protocol Protocol `json:"protocol"`
	// Port is the port to which packets are sent. Zero means the port of the service
	// ([ServicePort.Port]). If that port is a range, packets keep their ports, unless the range has
	// a [ServicePort.TargetPort].
	Port uint16 `json:"port,omitzero"`
}

// TargetPort returns the endpoint's port for packets to the service port that has p's name and
// protocol: p.Port or, if that is zero, the service's own port. If a range is mapped to a range of
// the endpoint ([ServicePort.TargetPort]), the result is the first port of the endpoint's range.
// The result is zero if packets keep their ports, or if the service has no such port.
func (s *Service) TargetPort(p EndpointPort) uint16 {
	if s == nil || p.Port != 0 {
		return p.Port
	}
	for i := range s.Ports {
		if port := &s.Ports[i]; port.Name == p.Name && port.Protocol == p.Protocol {
			return port.target(0)
		}
	}

	return 0
}

// endNodePort returns the last node port of a range, and zero without a range of node ports.
func (s *ServicePort) endNodePort() uint16 {
	if s.EndPort == 0 || s.NodePort == 0 {
		return 0
	}
	return s.NodePort + (s.EndPort - s.Port)
}

// target returns the port of an endpoint, given as p, to which packets for s are sent. Zero means
// that packets keep their ports.
func (s *ServicePort) target(p uint16) uint16 {
	switch {
	case p != 0:
		return p
	case s.EndPort == 0:
		return s.Port
	}

	return s.TargetPort
}
