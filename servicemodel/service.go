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

// Service is a desired service: what a program asks the kernel to balance.
//
// The fields mean the same as the Kubernetes fields of the same name. kernlb itself does not know
// Kubernetes.
type Service struct {
	// Name identifies the service.
	Name Name `json:"name"`

	// Ports are the ports that the service answers on, at each of its addresses.
	Ports []ServicePort `json:"ports,omitempty"`

	// ClusterIPs are the addresses inside the cluster, at most one per family. Endpoints serve only
	// addresses of their own family.
	//
	// Cluster IPs decide in which families the service exists. If all are of one family, the node
	// does not balance the service's addresses and node ports of the other family, as in
	// Kubernetes. A service without cluster IPs, which Kubernetes does not have, exists in both
	// families. Its node ports then answer in the families of its endpoints and other addresses, or
	// in both if it has none.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`

	// ExternalIPs are further addresses that reach the service from outside.
	ExternalIPs []netip.Addr `json:"externalIPs,omitempty"`

	// LoadBalancerIPs are addresses that a load balancer in front of the node sends
	// traffic to.
	LoadBalancerIPs []LoadBalancerIP `json:"loadBalancerIPs,omitempty"`

	// HostIPs are addresses of the node itself at which the ports are published, like a hostPort
	// with a hostIP. For clients they work like ExternalIPs. IPv4 loopback addresses are allowed:
	// they answer only to the node itself, and only if [Node.LocalhostNodePorts] is set. ::1 is not
	// allowed, because Linux routes no packet from ::1 to an interface other than loopback and has
	// no sysctl for it.
	//
	// To publish a port at all addresses of the node, use a node port.
	HostIPs []netip.Addr `json:"hostIPs,omitempty"`

	// LoadBalancerSourceRanges restricts the clients of LoadBalancerIPs, each family independently.
	// A family is unrestricted if it has no range here, or its whole range (/0). The ranges never
	// restrict the other addresses or node ports. Clients does.
	LoadBalancerSourceRanges []netip.Prefix `json:"loadBalancerSourceRanges,omitempty"`

	// Clients are rules for who may connect, at addresses of every kind. Without rules everybody
	// may, except where LoadBalancerSourceRanges say otherwise.
	Clients []ClientRule `json:"clients,omitempty"`

	// SessionAffinity keeps a client on its first endpoint.
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitzero"`

	// InternalTrafficPolicy says which endpoints may serve ClusterIPs.
	InternalTrafficPolicy TrafficPolicy `json:"internalTrafficPolicy,omitzero"`

	// ExternalTrafficPolicy says which endpoints may serve all other addresses and node ports for
	// clients outside the cluster. Under Local, the clients keep their source address.
	ExternalTrafficPolicy TrafficPolicy `json:"externalTrafficPolicy,omitzero"`

	// Prefer says which ready endpoints are preferred under policy Cluster: "node" for those on
	// this node, then those in its zone, then all others; "zone" for those in its zone, then all
	// others. Empty, the default, prefers none.
	//
	// A level of endpoints keeps all its traffic as long as 10 of 14 of its endpoints are ready.
	// With fewer, it keeps ready/all × 1.4 of the traffic, and the rest goes to the next levels by
	// the same rule (Envoy's priority levels). A quiesced endpoint counts as not ready, and a
	// terminating endpoint does not count. If topology hints decide, the preference has no effect.
	//
	// The shares become weights, so schedulers that do not follow weights exclude Prefer: "rr",
	// "lc", "dh", "fo" and "ovf".
	Prefer string `json:"prefer,omitzero"`

	// HealthCheckNodePort, if not zero, is the TCP port on which an external load balancer asks
	// whether this node has local endpoints ([Table.HealthChecks]). It has an effect only with
	// ExternalTrafficPolicy Local. It then must not equal a node port of the service.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitzero"`

	// SilentEndpoints says what a program that notices endpoints that do not answer, such as one
	// with a follower of package dataplane/silence, does about them. Other programs ignore it.
	SilentEndpoints SilentPolicy `json:"silentEndpoints,omitzero"`

	// Masquerade says which clients' source address is hidden from endpoints. The zero value does
	// what kube-proxy does.
	Masquerade Masquerade `json:"masquerade,omitzero"`

	// MasqueradeIPs are the addresses that endpoints see as the source of masqueraded connections,
	// at most one per family. In a family without one, they see an address of the interface by
	// which the packet leaves. The unspecified address stands for the address of the service that
	// the client connects to; it changes nothing at node ports and loopback addresses. An endpoint
	// that connects to itself sees this source if its connection would be masqueraded anyway, and
	// else an address of the interface.
	//
	// The endpoints' answers to these addresses must come back through this node.
	MasqueradeIPs []netip.Addr `json:"masqueradeIPs,omitempty"`

	// SlowStart is the time in which an endpoint that becomes ready grows to its whole weight, in
	// whole seconds: at least 5 s, at most a day. It begins with a tenth. Zero means that it has
	// all its weight at once.
	//
	// The weight is within 5 % of a straight line, and changes at most ten times a second. If no
	// endpoint was ready, those that become ready first have their whole weights, because nothing
	// else could take their connections. An endpoint that was not ready for a while begins anew. A
	// lower weight holds at once.
	//
	// A program that starts goes on from the weights in the kernel. While no program runs, nothing
	// grows. SlowStart takes the schedulers that [Service.Prefer] takes. It needs an
	// engine: parts refuse it.
	SlowStart time.Duration `json:"-"`

	// Scheduler says how to choose among endpoints. The zero value is the backend's default: random
	// for nftables and iptables, weighted round robin for IPVS.
	// [Scheduler] says what each backend has.
	Scheduler Scheduler `json:"scheduler,omitzero"`

	// Forwarding says how packets reach an endpoint. The zero value is NAT.
	Forwarding Forwarding `json:"forwarding,omitzero"`

	// Connections says what happens to the connections of endpoints that the service loses.
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
	// EndPort, as in a NetworkPolicy. From 1 to 65535 are all ports. A range has no node port.
	//
	// If services claim the same port of an address, a claim of exactly that port (and the same
	// node port) wins over a range, and a narrower range over a wider one, whatever the services
	// and the kinds of their addresses are. Of two ranges of equal width, the one that begins
	// earlier wins. A range loses only the ports of the others. Equal ranges conflict as equal
	// ports do.
	EndPort uint16 `json:"endPort,omitzero"`
	// NodePort, if not zero, answers at the node's own addresses (see [Node.NodePortAddresses]).
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

// TrafficPolicy says which endpoints a node may use for a service.
type TrafficPolicy string

const (
	// PolicyCluster is the default: endpoints anywhere in the cluster.
	PolicyCluster TrafficPolicy = ""
	// PolicyLocal uses endpoints on this node only.
	PolicyLocal TrafficPolicy = "Local"
)

// UnmarshalText also takes "Cluster" for [PolicyCluster], as Kubernetes writes it.
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

// parseWord returns the one of the words that s is, or "" if s is the word for the default.
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
	// Timeout is how long a client is remembered after its last new connection, in whole seconds:
	// at least one, at most a day. Zero means three hours.
	Timeout time.Duration
	// Bits4 and Bits6 are how many leading bits of an IPv4 and of an IPv6 address identify a
	// client: addresses that agree in these bits are one client. Zero means the whole address.
	Bits4, Bits6 uint8
	// WholeService gives a client the same endpoint address at all ports of the service. Without
	// it, the ports remember their clients independently. A port whose endpoints do not have the
	// remembered address chooses among its own.
	WholeService bool
}

// Default and maximum of [SessionAffinity.Timeout], as in Kubernetes
// (DefaultClientIPServiceAffinitySeconds, MaxClientIPServiceAffinitySeconds).
const (
	defaultAffinityTimeout = 10800 * time.Second
	maxAffinityTimeout     = 86400 * time.Second
)

// Scheduler is a way of choosing an endpoint, named as in IPVS (include/net/ip_vs.h; ipvsadm(8)),
// or "random". A backend refuses schedulers that it lacks: IPVS lacks random, nftables has random,
// rr, wrr, sh, mh and, with [Endpoint.Share], lc and wlc; and iptables random, rr and sh.
//
// As in IPVS, rr and lc treat all endpoints alike, whatever the weights are. Shares under dh, fo
// and ovf do not follow the weights, either. The other schedulers follow the weights.
//
// The schedulers that hash the client, [SourceHash] and [Maglev], take two options, in this order:
// "sh+port", "mh+fallback", "mh+port+fallback" (IP_VS_SVC_F_SCHED_SH_PORT and _FALLBACK,
// IP_VS_SVC_F_SCHED_MH_PORT and _FALLBACK in include/uapi/linux/ip_vs.h). With port they also hash
// the client's port, so that the connections of one client are spread. With fallback they use
// another endpoint if the chosen one takes no new connections, for example while it drains.
// Otherwise these clients are refused. In nftables the option changes nothing, because an endpoint
// that takes no new connections is in no pool.
type Scheduler string

// The schedulers. All except random are modules of IPVS in Linux, ip_vs_*.
const (
	SchedulerDefault Scheduler = ""       // the backend's default
	Random           Scheduler = "random" // uniformly at random, by weight
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

// schedulers are the IPVS schedulers that have no options, and hashing those that do.
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

// Even reports whether the scheduler treats all endpoints alike, whatever their weights are.
func (s Scheduler) Even() bool { return s == RoundRobin || s == LeastConn }

// list joins words with a separator.
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

// Forwarding says how a packet is handed to its endpoint (IP_VS_CONN_F_FWD_MASK in
// include/uapi/linux/ip_vs.h).
type Forwarding string

const (
	// ForwardNAT is the default, and the only way outside IPVS. It rewrites the destination and, if
	// needed, the source.
	ForwardNAT Forwarding = ""
	// ForwardDirect sends the packet unchanged to the endpoint's link-layer address (direct
	// routing).
	ForwardDirect Forwarding = "direct"
	// ForwardTunnel sends the packet unchanged inside an IP-in-IP tunnel.
	ForwardTunnel Forwarding = "tunnel"
)

// UnmarshalText also takes "nat" for [ForwardNAT].
func (f *Forwarding) UnmarshalText(text []byte) error {
	*f = Forwarding(wordOr(string(text), "nat"))
	return nil
}

// ParseForwarding returns the forwarding of a name: "nat", "direct" or "tunnel".
func ParseForwarding(s string) (Forwarding, error) { return parseWord(s, "nat", forwardings) }

// forwardings are the ways without the default.
var forwardings = []Forwarding{ForwardDirect, ForwardTunnel}

// SilentPolicy says what happens to endpoints that do not answer new connections of clients.
type SilentPolicy uint8

const (
	// SilentDefault is the default: what the program does about other services.
	SilentDefault SilentPolicy = iota
	// SilentEject takes endpoints that do not answer TCP connections out until they answer again.
	// It needs [ForwardNAT], because other answers do not pass this node.
	SilentEject
	// SilentStay lets all endpoints take connections.
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

// UnmarshalText reads what [ParseSilentPolicy] does.
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

// MasqueradePolicy says which packets get the node's address as their source, so that endpoints
// answer to the node. Two kinds of connections are always masqueraded: from an endpoint to itself,
// and from the node itself to a loopback address.
type MasqueradePolicy string

const (
	// MasqueradeDefault is the default and does what kube-proxy does. At cluster IPs it is
	// MasqueradeNotPods if the node can tell pods, else MasqueradeNever; [Node.MasqueradeAll] makes
	// it MasqueradeAlways. At all other addresses it is MasqueradeAlways, or MasqueradeHost with
	// external traffic policy Local.
	MasqueradeDefault MasqueradePolicy = ""
	// MasqueradeAlways masquerades all clients.
	MasqueradeAlways MasqueradePolicy = "always"
	// MasqueradeNotPods masquerades all clients except pods ([Node.LocalPods]).
	MasqueradeNotPods MasqueradePolicy = "not-pods"
	// MasqueradeHost masquerades only the node itself.
	MasqueradeHost MasqueradePolicy = "host"
	// MasqueradeNever masquerades no client. The endpoints' answers must come back through this
	// node some other way: by routing, or because the endpoints are on it.
	MasqueradeNever MasqueradePolicy = "never"
)

// UnmarshalText also takes "default" for [MasqueradeDefault].
func (p *MasqueradePolicy) UnmarshalText(text []byte) error {
	*p = MasqueradePolicy(wordOr(string(text), "default"))
	return nil
}

// masqueradePolicies are the policies without the default.
var masqueradePolicies = []MasqueradePolicy{MasqueradeAlways, MasqueradeNotPods, MasqueradeHost,
	MasqueradeNever}

// ParseMasqueradePolicy parses "default", "always", "not-pods", "host" or "never".
func ParseMasqueradePolicy(s string) (MasqueradePolicy, error) {
	return parseWord(s, "default", masqueradePolicies)
}

// Masquerade has a policy for each kind of address that a service answers at.
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
// If several endpoints of a service have the same address and port, only one of them counts: a
// ready one before one that serves while it terminates. Among others, one that is not terminating
// comes first, then the first in the list.
type Endpoint struct {
	// Addr is the address at which the endpoint listens. Its family decides which of the service's
	// addresses it serves.
	Addr netip.Addr `json:"addr"`

	// Ports are the endpoint's ports. A service port uses the one with its name and protocol. An
	// endpoint without such a port does not serve the service port.
	Ports []EndpointPort `json:"ports,omitempty"`

	// Condition says whether the endpoint takes connections. The zero value is [Ready].
	Condition Condition `json:"condition,omitzero"`

	// Node is the name of the node that the endpoint runs on, empty if unknown. The endpoint is
	// local if it equals [Node.Name].
	Node string `json:"node,omitzero"`
	// Zone is the zone that the endpoint runs in. It counts only for [Service.Prefer].
	Zone string `json:"zone,omitzero"`
	// ForNodes and ForZones are topology hints: the nodes and zones that should use this endpoint.
	ForNodes []string `json:"forNodes,omitempty"`
	ForZones []string `json:"forZones,omitempty"`

	// Weight is the endpoint's share relative to the other endpoints. Zero means 1.
	Weight uint16 `json:"weight,omitzero"`

	// Share is how many new connections the endpoint gets at present, relative to the other
	// endpoints, under [LeastConn] and [WeightedLC] at nftables, whose kernel counts no
	// connections: a program counts them, and feeds shares back. Zero is the mean of the other
	// endpoints, by weight. If all are zero, the pool keeps the shares that it has in the kernel;
	// in the beginning they follow the weights. Shares come true as units of a power of two, at
	// least 64, so that few of them change at a time; if they are the weights, they come true
	// exactly. They have no effect elsewhere.
	Share uint16 `json:"share,omitzero"`
}

// Condition says whether an [Endpoint] takes connections.
type Condition string

const (
	// Ready is the default: the endpoint takes new connections.
	Ready Condition = ""
	// NotReady endpoints take no connections, and keep no UDP flows.
	NotReady Condition = "not-ready"
	// Serving endpoints shut down, and can still serve. They get new connections only if no
	// endpoint is ready. In Kubernetes they are serving and terminating.
	Serving Condition = "serving"
	// Terminating endpoints shut down, and serve no more.
	Terminating Condition = "terminating"
	// Quiesced endpoints take no new connections, and are no fallback either. Elsewhere a weight of
	// 0 means this. Their connections and UDP flows are treated like those of Serving endpoints
	// ([ConnectionPolicy]). Clients that session affinity remembers get another endpoint.
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

// UnmarshalText also takes "ready" for [Ready].
func (c *Condition) UnmarshalText(text []byte) error {
	*c = Condition(wordOr(string(text), "ready"))
	return nil
}

// conditions are the conditions without the default.
var conditions = []Condition{NotReady, Serving, Terminating, Quiesced}

// EndpointPort is a port that an [Endpoint] listens on. It serves the service ports of its name and
// protocol.
type EndpointPort struct {
	Name     string   `json:"name,omitzero"`
	Protocol Protocol `json:"protocol"`
	// Port is the port that packets are sent to. Zero is the port of the service
	// ([ServicePort.Port]). If that is a range, packets keep their ports.
	Port uint16 `json:"port,omitzero"`
}

// TargetPort returns the port to which packets for the service ports of p's name and protocol are
// sent at an endpoint with the port p: p.Port, or the service's own port if that is zero. The
// result is zero if packets keep their ports, or if the service has no such port.
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

// target returns the port of an endpoint, given as p, to which packets for s are sent. Zero means
// that they keep their ports.
func (s *ServicePort) target(p uint16) uint16 {
	if p == 0 && s.EndPort == 0 {
		return s.Port
	}
	return p
}
