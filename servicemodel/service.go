package servicemodel

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Service is a desired service: what a program asks the kernel to balance.
//
// The fields carry the meaning of the Kubernetes fields of the same name; kernlb itself knows
// nothing of Kubernetes.
type Service struct {
	// Name identifies the service.
	Name Name `json:"name"`

	// Ports are the ports the service answers on, at every address of it.
	Ports []ServicePort `json:"ports,omitempty"`

	// ClusterIPs are the addresses inside the cluster, at most one per family.
	// An endpoint of a family is used only by addresses of the same family.
	//
	// They decide in which families the service exists: with cluster IPs of one family only, its
	// other addresses and node ports of the other family are left alone, as in Kubernetes. A
	// service without cluster IPs, which Kubernetes does not have, exists in both; its node ports
	// then answer in the families of its endpoints and of its other addresses, and in both if it
	// has none of these.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`

	// ExternalIPs are further addresses that reach the service from outside.
	ExternalIPs []netip.Addr `json:"externalIPs,omitempty"`

	// LoadBalancerIPs are addresses that a load balancer in front of the node sends
	// traffic to.
	LoadBalancerIPs []LoadBalancerIP `json:"loadBalancerIPs,omitempty"`

	// HostIPs are addresses of the node itself at which the ports are published, as by a hostPort
	// with a hostIP. To clients they are what ExternalIPs are. IPv4 loopback addresses are allowed:
	// they answer to the node itself, and only where [Node.LocalhostNodePorts] is set. ::1 is not:
	// Linux routes no packet from ::1 to another interface than loopback, and has no sysctl for it.
	//
	// A port that is published at all addresses of the node is a node port.
	HostIPs []netip.Addr `json:"hostIPs,omitempty"`

	// LoadBalancerSourceRanges restricts who may use LoadBalancerIPs. It counts for each family
	// apart: no range of a family, or one that is the whole family (/0), leaves that
	// family unrestricted. It never restricts the other addresses or node ports.
	LoadBalancerSourceRanges []netip.Prefix `json:"loadBalancerSourceRanges,omitempty"`

	// SessionAffinity keeps a client on the endpoint it was first given.
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitzero"`

	// InternalTrafficPolicy says which endpoints may serve ClusterIPs.
	InternalTrafficPolicy TrafficPolicy `json:"internalTrafficPolicy,omitzero"`

	// ExternalTrafficPolicy says which endpoints may serve all other addresses and node ports for
	// clients outside the cluster. With Local their source address is kept.
	ExternalTrafficPolicy TrafficPolicy `json:"externalTrafficPolicy,omitzero"`

	// HealthCheckNodePort, if not zero, is the TCP port on which an external load balancer asks
	// whether this node has local endpoints ([Table.HealthChecks]). It counts only with
	// ExternalTrafficPolicy Local; then it must not be a node port of the service too.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitzero"`

	// Masquerade says whose source address endpoints do not see. The zero value does what
	// kube-proxy does.
	Masquerade Masquerade `json:"masquerade,omitzero"`

	// Scheduler says how to choose among endpoints. The zero value lets the backend choose
	// its default: random for nftables and iptables, round robin for IPVS.
	Scheduler Scheduler `json:"scheduler,omitzero"`

	// Forwarding says how packets reach an endpoint. The zero value is NAT.
	Forwarding Forwarding `json:"forwarding,omitzero"`

	// Connections says what becomes of connections to endpoints that are taken away.
	Connections ConnectionPolicy `json:"connections,omitzero"`
}

// ServicePort is one port of a [Service].
type ServicePort struct {
	// Name tells the ports of a service apart and selects the endpoints' port.
	// It may be empty if the service has one port only.
	Name string `json:"name,omitzero"`
	// Protocol is TCP, UDP or SCTP.
	Protocol Protocol `json:"protocol"`
	// Port is the port at the service's addresses.
	Port uint16 `json:"port"`
	// NodePort, if not zero, answers at the node's own addresses (see [Node.NodePortAddresses]).
	NodePort uint16 `json:"nodePort,omitzero"`
}

// LoadBalancerIP is an address of a load balancer.
type LoadBalancerIP struct {
	Addr netip.Addr `json:"addr"`
	// Mode says whether packets arrive with Addr as their destination.
	Mode LoadBalancerIPMode `json:"mode,omitzero"`
}

// LoadBalancerIPMode says how a load balancer delivers traffic (KEP-1860).
type LoadBalancerIPMode uint8

const (
	// LoadBalancerVIP keeps the load balancer's address as destination, so the node balances it.
	// The default.
	LoadBalancerVIP LoadBalancerIPMode = iota
	// LoadBalancerProxy rewrites the destination, so the node leaves the address alone.
	LoadBalancerProxy
)

// TrafficPolicy says which endpoints a node may use for a service.
type TrafficPolicy uint8

const (
	// PolicyCluster uses endpoints anywhere in the cluster. The default.
	PolicyCluster TrafficPolicy = iota
	// PolicyLocal uses endpoints on this node only.
	PolicyLocal
)

// String returns "Cluster" or "Local".
func (p TrafficPolicy) String() string {
	if p == PolicyLocal {
		return "Local"
	}
	return "Cluster"
}

// SessionAffinity keeps a client, told apart by its address, on one endpoint.
type SessionAffinity struct {
	// ClientIP switches affinity on.
	ClientIP bool
	// Timeout is how long after a client's last new connection it is remembered. Zero means
	// [DefaultAffinityTimeout]. At least a second, at most [MaxAffinityTimeout], in whole seconds.
	Timeout time.Duration
}

// Bounds of [SessionAffinity.Timeout], those of the Kubernetes API
// (DefaultClientIPServiceAffinitySeconds, MaxClientIPServiceAffinitySeconds in k8s.io/api/core/v1).
const (
	DefaultAffinityTimeout = 10800 * time.Second
	MaxAffinityTimeout     = 86400 * time.Second
)

// Scheduler names a way of choosing an endpoint, in the words of IPVS
// (include/net/ip_vs.h; ipvsadm(8)), plus "random". A backend refuses those it cannot do.
type Scheduler string

// The schedulers. All but random are those of the Linux IPVS modules ip_vs_*.
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

// schedulers are those of IPVS that take no options, and hashing those that do.
var (
	schedulers = []Scheduler{RoundRobin, WeightedRR, LeastConn, WeightedLC, LocalityLC, LocalityLCR,
		DestHash, ShortestDelay, NeverQueue, Failover, Overflow}
	hashing = []Scheduler{SourceHash, Maglev}
)

// Options of the schedulers that hash the client, [SourceHash] and [Maglev], to be appended in this
// order: SourceHash + HashPort is "sh+port" (IP_VS_SVC_F_SCHED_SH_PORT,
// IP_VS_SVC_F_SCHED_SH_FALLBACK and those of mh in include/uapi/linux/ip_vs.h).
const (
	// HashPort hashes the client's port, too: its connections are spread.
	HashPort Scheduler = "+port"
	// HashFallback takes another endpoint where the chosen one gets no new connections, as one that
	// is drained. Without it these clients are refused.
	HashFallback Scheduler = "+fallback"
)

// ParseScheduler returns the scheduler of a name, such as "wrr" or "mh+port".
func ParseScheduler(s string) (Scheduler, error) {
	if r := Scheduler(s); r != SchedulerDefault && r.known() {
		return r, nil
	}
	return SchedulerDefault, fmt.Errorf("must be random or a scheduler of IPVS: %s; %s, with "+
		"+port, +fallback or both", list(schedulers, ", "), list(hashing, " or "))
}

// list returns the names of schedulers as text.
func list(l []Scheduler, separator string) string {
	var b strings.Builder
	for i, s := range l {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(string(s))
	}
	return b.String()
}

// Split returns the scheduler without options, and which it has.
func (s Scheduler) Split() (name Scheduler, port, fallback bool) {
	rest, fallback := strings.CutSuffix(string(s), string(HashFallback))
	rest, port = strings.CutSuffix(rest, string(HashPort))
	return Scheduler(rest), port, fallback
}

// Forwarding says how a packet is handed to its endpoint (IP_VS_CONN_F_FWD_MASK in
// include/uapi/linux/ip_vs.h).
type Forwarding uint8

const (
	// ForwardNAT rewrites the destination (and, where needed, the source). The default, and
	// the only one outside IPVS.
	ForwardNAT Forwarding = iota
	// ForwardDirect sends the packet unchanged to the endpoint's link-layer address (direct
	// routing).
	ForwardDirect
	// ForwardTunnel sends the packet unchanged inside an IP-in-IP tunnel.
	ForwardTunnel
)

// ParseForwarding is the inverse of [Forwarding.String].
func ParseForwarding(s string) (Forwarding, error) {
	for _, f := range []Forwarding{ForwardNAT, ForwardDirect, ForwardTunnel} {
		if s == f.String() {
			return f, nil
		}
	}
	return 0, errors.New("must be nat, direct or tunnel")
}

// String returns "nat", "direct" or "tunnel".
func (f Forwarding) String() string {
	switch f {
	case ForwardDirect:
		return "direct"
	case ForwardTunnel:
		return "tunnel"
	}
	return "nat"
}
