package netnstest

import (
	"github.com/kernlb/kernlb/servicemodel"
)

// network contains the addresses of a [Cluster].
type network struct {
	// NodeIPv4 and NodeIPv6 are the primary addresses of the node: the source addresses of its
	// default route.
	NodeIPv4 string
	NodeIPv6 string
	// NodeSecondaryIPv4 and NodeSecondaryIPv6 are further addresses on the same interface, eth0.
	NodeSecondaryIPv4 string
	NodeSecondaryIPv6 string
	// NodeOutsideIPv4 and NodeOutsideIPv6 are the node's addresses on eth1, towards the outside
	// clients.
	NodeOutsideIPv4 string
	NodeOutsideIPv6 string
	// NodeUnderlayIPv4 and NodeUnderlayIPv6 are the node's addresses on eth2, towards the other
	// node.
	NodeUnderlayIPv4 string
	NodeUnderlayIPv6 string
	// OtherNodeIPv4 and OtherNodeIPv6 are the addresses of the other node.
	OtherNodeIPv4 string
	OtherNodeIPv6 string

	// ClusterCIDRv4 and ClusterCIDRv6 contain the pods of all nodes.
	ClusterCIDRv4 string
	ClusterCIDRv6 string
	// NodeCIDRv4 and NodeCIDRv6 contain the pods of the node under test.
	NodeCIDRv4 string
	NodeCIDRv6 string
	// RemoteCIDRv4 and RemoteCIDRv6 contain the pods of the other node.
	RemoteCIDRv4 string
	RemoteCIDRv6 string
	// OutsideCIDRv4 and OutsideCIDRv6 contain the outside clients, and the node's address towards
	// them.
	OutsideCIDRv4 string
	OutsideCIDRv6 string

	// ServiceCIDRv4 and ServiceCIDRv6 are free for cluster IPs.
	ServiceCIDRv4 string
	ServiceCIDRv6 string
	// LoadBalancerCIDRv4 and LoadBalancerCIDRv6 are free for load-balancer and external IPs.
	LoadBalancerCIDRv4 string
	LoadBalancerCIDRv6 string

	// Internet is the name under which the internet answers, for every destination address.
	Internet string
}

// Net has the well-known addresses of a [Cluster], and is never changed. All addresses are in
// documentation ranges (RFC 5737, RFC 3849) and private ranges.
var Net = network{
	NodeIPv4:           "192.0.2.10",
	NodeIPv6:           "2001:db8:2::10",
	NodeSecondaryIPv4:  "192.0.2.11",
	NodeSecondaryIPv6:  "2001:db8:2::11",
	NodeOutsideIPv4:    "198.51.100.1",
	NodeOutsideIPv6:    "2001:db8:51::1",
	NodeUnderlayIPv4:   "172.18.0.10",
	NodeUnderlayIPv6:   "fd00:172:18::10",
	OtherNodeIPv4:      "172.18.0.20",
	OtherNodeIPv6:      "fd00:172:18::20",
	ClusterCIDRv4:      "10.244.0.0/16",
	ClusterCIDRv6:      "fd00:10:244::/56",
	NodeCIDRv4:         "10.244.1.0/24",
	NodeCIDRv6:         "fd00:10:244:1::/64",
	RemoteCIDRv4:       "10.244.2.0/24",
	RemoteCIDRv6:       "fd00:10:244:2::/64",
	OutsideCIDRv4:      "198.51.100.0/24",
	OutsideCIDRv6:      "2001:db8:51::/64",
	ServiceCIDRv4:      "10.96.0.0/16",
	ServiceCIDRv6:      "fd00:10:96::/112",
	LoadBalancerCIDRv4: "203.0.113.0/24",
	LoadBalancerCIDRv6: "2001:db8:113::/64",
	Internet:           "internet",
}

// Protocols returns the protocols that carry services, in a fixed order.
func Protocols() []servicemodel.Protocol {
	return []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP}
}
