package servicemodel

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// Protocol is a transport protocol, numbered as in the IP header
// (IANA protocol numbers; IPPROTO_* in include/uapi/linux/in.h).
// The zero value is not a protocol. UnmarshalText reads names such as "tcp".
type Protocol uint8

// The protocols a service can balance, with their numbers in the IP header.
const (
	TCP  Protocol = 6   // IPPROTO_TCP
	UDP  Protocol = 17  // IPPROTO_UDP
	SCTP Protocol = 132 // IPPROTO_SCTP
)

// String returns "tcp", "udp" or "sctp", and a number for other values.
func (p Protocol) String() string { return nameOf("protocol", p, protocolNames) }

var protocolNames = []string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}

// Valid reports whether p is TCP, UDP or SCTP.
func (p Protocol) Valid() bool { return p == TCP || p == UDP || p == SCTP }

// Name is the name of a service: a name within a namespace, as in Kubernetes. Both parts are
// required, at most 253 bytes long, of printable ASCII characters without spaces, "/", ":" and
// quotes: names become comments in the kernel. Names of ports follow the same rules, except that
// they may be empty.
type Name struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// PortName is the identity of one port of a service. Two ports of a service may have the same
// number if their protocols differ, but never the same name. The text of a valid name
// ([PortName.String]) has at most 191 bytes.
type PortName struct {
	Name     Name     `json:"name"`
	Port     string   `json:"port,omitzero"` // its name; empty if it is the only port
	Protocol Protocol `json:"protocol,omitzero"`
}

// maxPortName is the maximum length of [PortName.String] in bytes. Backends keep this text in the
// kernel, in comments of at most 256 bytes. Kubernetes allows 63 bytes each for namespace, name and
// port.
const maxPortName = 63 + 1 + 63 + 1 + 63

// String returns "namespace/name:port", or "namespace/name" if the port has no name, as kube-proxy
// does.
func (n PortName) String() string {
	if n.Port == "" {
		return n.Name.String()
	}
	return n.Name.String() + ":" + n.Port
}

// Compare orders port names by service, port name and protocol.
func (n PortName) Compare(o PortName) int {
	if c := n.Name.Compare(o.Name); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(n.Port, o.Port), cmp.Compare(n.Protocol, o.Protocol))
}

// Family is an IP address family.
type Family uint8

// The address families. A service may have addresses of both.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() || a.Is4In6() {
		return IPv4
	}
	return IPv6
}

// The hashers of the keys of states and tables. An address contains a pointer to its zone, so
// addresses are hashed by their bytes.
type (
	nameHash = pmap.Plain[Name]
	portHash = pmap.Plain[PortName]
	poolHash = pmap.Plain[PoolID]
	addrHash struct{}
	keyHash  struct{}
)

func (addrHash) Hash(a netip.Addr) uint64 { return pmap.Hash(a.As16()) }

func (keyHash) Hash(k FrontendKey) uint64 {
	return addrHash{}.Hash(k.Addr) ^
		pmap.Hash(uint64(k.EndPort)<<32|uint64(k.Port)<<8|uint64(k.Protocol))
}

// compareRanks orders the claims of one key: the lowest wins.
func compareRanks(a, b *Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Service.Compare(b.Service))
}

// compareClaims orders the claims of a service by service port and key.
func compareClaims(a, b *Frontend) int {
	if c := a.Service.Compare(b.Service); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

func comparePools(a, b *Pool) int { return a.ID.Compare(b.ID) }
