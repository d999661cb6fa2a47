package kernelspace

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// HNS has the calls to the Host Networking Service that a [Backend] needs. On Windows, [Host]
// implements it. Each call returns when the service has answered; no call can be interrupted.
// Identities are GUIDs; the service is free to write them in either case.
//
// Errors wrap [ErrNotFound], [ErrExists] or [ErrNotImplemented] in these cases.
type HNS interface {
	// Features returns the abilities of this version of Windows.
	Features() (Features, error)
	// Network returns the network of a name.
	Network(name string) (*Network, error)
	// IDs lists only the identities of all endpoints and load balancers, because it is called
	// several times a second.
	IDs() (endpoints, loadBalancers []string, err error)
	// Endpoints lists the endpoints of a network.
	Endpoints(network string) ([]Endpoint, error)
	// CreateEndpoint adds an endpoint to its network, e.HostComputeNetwork.
	CreateEndpoint(e *Endpoint) (*Endpoint, error)
	DeleteEndpoint(id string) error
	// LoadBalancers lists the load balancers of all networks.
	LoadBalancers() ([]LoadBalancer, error)
	CreateLoadBalancer(lb *LoadBalancer) (*LoadBalancer, error)
	// ModifyLoadBalancer replaces the content of a load balancer without a gap.
	ModifyLoadBalancer(id string, lb *LoadBalancer) (*LoadBalancer, error)
	DeleteLoadBalancer(id string) error
}

// Errors of [HNS].
var (
	// ErrNotFound says that an object, or an object to which it refers, does not exist.
	ErrNotFound = errors.New("not found in HNS")
	// ErrExists says that another object has the same address or port (HCN_E_PORT_ALREADY_EXISTS).
	ErrExists = errors.New("exists in HNS already")
	// ErrNotImplemented says that this version of Windows lacks the call.
	ErrNotImplemented = errors.New("not implemented by HNS")
)

// Features are the abilities of HNS that matter here, a part of hcn.SupportedFeatures.
type Features struct {
	V2                 bool // the API of load balancers (HNS 9.2)
	RemoteSubnet       bool // overlay networks (9.2)
	DSR                bool // direct server return (9.3, 10.2)
	SessionAffinity    bool // SourceIP distribution (12.0)
	IPv6DualStack      bool // IPv6 (11.10)
	ModifyLoadBalancer bool // change in place (15.5)
}

// The types below mirror the JSON of HCN, as hcn.HostComputeLoadBalancer and its siblings in
// github.com/Microsoft/hnslib do.

// Network is a network, such as one of type Overlay or L2Bridge.
type Network struct {
	ID       string   `json:",omitempty"`
	Name     string   `json:",omitempty"`
	Type     string   `json:",omitempty"`
	Policies []Policy `json:",omitempty"`
	Ipams    []Ipam   `json:",omitempty"`
}

// Ipam holds the subnets of a [Network].
type Ipam struct {
	Subnets []Subnet `json:",omitempty"`
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	IPAddressPrefix string `json:"IpAddressPrefix,omitempty"`
}

// Policy is a setting of a network or an endpoint.
type Policy struct {
	Type     string          `json:""`
	Settings json.RawMessage `json:",omitempty"`
}

// Policies that the backend reads and writes.
const (
	policyRemoteSubnet    = "RemoteSubnetRoute" // of a network: a subnet of another node
	policyProviderAddress = "ProviderAddress"   // of a remote endpoint: the node that has it
)

// Endpoint is a network endpoint.
type Endpoint struct {
	ID                 string        `json:",omitempty"`
	Name               string        `json:",omitempty"`
	HostComputeNetwork string        `json:",omitempty"` // the ID of the network
	Policies           []Policy      `json:",omitempty"`
	IPConfigurations   []IPConfig    `json:"IpConfigurations,omitempty"`
	MacAddress         string        `json:",omitempty"`
	Flags              uint32        `json:",omitempty"` // [RemoteEndpoint]
	SchemaVersion      SchemaVersion `json:",omitzero"`
}

// RemoteEndpoint is the flag of an [Endpoint] on another node.
const RemoteEndpoint uint32 = 1

// Remote reports whether e is on another node.
func (e *Endpoint) Remote() bool { return e.Flags&RemoteEndpoint != 0 }

// IPConfig is an address of an endpoint.
type IPConfig struct {
	IPAddress string `json:"IpAddress,omitempty"`
}

// SchemaVersion is the version of an object's JSON. It is 2.0.
type SchemaVersion struct {
	Major int `json:""`
	Minor int `json:""`
}

var schemaV2 = SchemaVersion{Major: 2}

// LoadBalancer is a load balancer.
type LoadBalancer struct {
	ID                   string        `json:",omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"` // IDs
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"` // none: the addresses of the node
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        SchemaVersion `json:",omitzero"`
	Flags                uint32        `json:",omitempty"` // [FlagDSR], [FlagIPv6]
}

// PortMapping is the port of a load balancer.
type PortMapping struct {
	Protocol         uint32 `json:",omitempty"` // 6 TCP, 17 UDP
	InternalPort     uint16 `json:",omitempty"` // at the endpoints
	ExternalPort     uint16 `json:",omitempty"`
	DistributionType uint32 `json:",omitempty"` // 0 by connection, [DistributeSourceIP]
	Flags            uint32 `json:",omitempty"`
}

// Flags of a [LoadBalancer].
const (
	FlagDSR  uint32 = 1 // answers go to the client directly, and its address is kept
	FlagIPv6 uint32 = 2
)

// Flags of a [PortMapping]. winkernel never sets ILB (1).
const (
	PortLocalRoutedVIP uint32 = 2  // reachable from the node itself
	PortUseMux         uint32 = 4  // a multiplexer in front sends the packets
	PortPreserveDIP    uint32 = 8  // packets keep the VIP as their destination
	PortVIPExternalIP  uint32 = 16 // the VIP is outside the cluster
)

// DistributeSourceIP sends all traffic of a client's address to one endpoint.
const DistributeSourceIP uint32 = 2

// protocols are the numbers of the protocols that HNS balances.
var protocols = map[servicemodel.Protocol]uint32{servicemodel.TCP: 6, servicemodel.UDP: 17}

// Key returns the place where a load balancer answers, and false if no frontend can have this
// place.
func (lb *LoadBalancer) Key() (k servicemodel.FrontendKey, ok bool) {
	if len(lb.PortMappings) != 1 || len(lb.FrontendVIPs) > 1 {
		return k, false
	}
	m := &lb.PortMappings[0]
	k.Port = m.ExternalPort
	k.Addr = netip.IPv4Unspecified()
	if lb.Flags&FlagIPv6 != 0 {
		k.Addr = netip.IPv6Unspecified()
	}
	if len(lb.FrontendVIPs) == 1 && lb.FrontendVIPs[0] != "" {
		a, err := netip.ParseAddr(lb.FrontendVIPs[0])
		if err != nil {
			return k, false
		}
		k.Addr = a.Unmap()
	}

	for p, number := range protocols {
		if number == m.Protocol {
			k.Protocol = p
			return k, true
		}
	}

	return k, false
}

// same reports whether two load balancers have the same content, whatever their identities, the
// order of their endpoints, and the case of the letters.
func (lb *LoadBalancer) same(o *LoadBalancer) bool {
	return slices.Equal(sortedIDs(lb.HostComputeEndpoints), sortedIDs(o.HostComputeEndpoints)) &&
		lb.SourceVIP == o.SourceVIP && slices.Equal(lb.FrontendVIPs, o.FrontendVIPs) &&
		slices.Equal(lb.PortMappings, o.PortMappings) && lb.Flags == o.Flags
}

func sortedIDs(ids []string) []string {
	l := make([]string, len(ids))
	for i, id := range ids {
		l[i] = lower(id)
	}
	slices.Sort(l)
	return l
}

// lower returns the form in which identities are compared.
func lower(id string) string { return strings.ToLower(id) }
