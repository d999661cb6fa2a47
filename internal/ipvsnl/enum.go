package ipvsnl

import (
	"errors"
	"fmt"
)

// Command is a command of the IPVS family of generic netlink (IPVS_CMD_*,
// include/uapi/linux/ip_vs.h).
type Command uint8

// The commands that this package and ipvsadm send.
const (
	CommandNewService     Command = 1  // IPVS_CMD_NEW_SERVICE
	CommandSetService     Command = 2  // IPVS_CMD_SET_SERVICE
	CommandDelService     Command = 3  // IPVS_CMD_DEL_SERVICE
	CommandGetService     Command = 4  // IPVS_CMD_GET_SERVICE
	CommandNewDestination Command = 5  // IPVS_CMD_NEW_DEST
	CommandSetDestination Command = 6  // IPVS_CMD_SET_DEST
	CommandDelDestination Command = 7  // IPVS_CMD_DEL_DEST
	CommandGetDestination Command = 8  // IPVS_CMD_GET_DEST
	CommandSetConfig      Command = 12 // IPVS_CMD_SET_CONFIG
	CommandGetConfig      Command = 13 // IPVS_CMD_GET_CONFIG
)

var commandNames = [...]string{1: "new service", "set service", "delete service", "get service",
	"new destination", "set destination", "delete destination", "get destination",
	12: "set config", "get config"}

// String returns the name of the command, for example "new service".
func (c Command) String() string { return name(commandNames[:], "command", uint32(c)) }

// Family is an address family (AF_* of Linux, on every system).
type Family uint16

// The families of IPVS.
const (
	FamilyIPv4 Family = 2  // AF_INET
	FamilyIPv6 Family = 10 // AF_INET6
)

var familyNames = [...]string{FamilyIPv4: "IPv4", FamilyIPv6: "IPv6"}

// String returns "IPv4", "IPv6" or the number.
func (f Family) String() string { return name(familyNames[:], "family", uint32(f)) }

// Protocol is a transport protocol (IPPROTO_*, include/uapi/linux/in.h).
type Protocol uint16

// The protocols that IPVS balances.
const (
	TCP  Protocol = 6   // IPPROTO_TCP
	UDP  Protocol = 17  // IPPROTO_UDP
	SCTP Protocol = 132 // IPPROTO_SCTP
)

var protocolNames = [...]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}

// String returns the name as ipvsadm prints it, or the number.
func (p Protocol) String() string { return name(protocolNames[:], "protocol", uint32(p)) }

// ForwardingMethod is a method of forwarding packets to a destination (IP_VS_CONN_F_*,
// include/uapi/linux/ip_vs.h).
type ForwardingMethod uint32

// The forwarding methods, in the kernel's order.
const (
	// IP_VS_CONN_F_MASQ: destination NAT; replies must pass this machine
	ForwardMasquerade ForwardingMethod = iota
	// IP_VS_CONN_F_LOCALNODE: let the packet through to this machine
	ForwardLocal
	// IP_VS_CONN_F_TUNNEL: encapsulated; replies go straight to the client
	ForwardTunnel
	// IP_VS_CONN_F_DROUTE: to the destination's link address, unchanged
	ForwardDirectRoute
	// IP_VS_CONN_F_BYPASS: to the original address; for caches, and set only by the kernel
	ForwardBypass
)

var forwardNames = [...]string{"masquerade", "local", "tunnel", "direct route", "bypass"}

// String returns the name of the method, for example "direct route".
func (m ForwardingMethod) String() string {
	return name(forwardNames[:], "forwarding method", uint32(m))
}

// name returns names[v], or kind and the number if v has no name.
func name(names []string, kind string, v uint32) string {
	if int64(v) < int64(len(names)) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s %d", kind, v)
}

// Errors on which callers act, with [errors.Is]. A refusal by the kernel is an [rawnl.OpError],
// whose Meaning is one of these errors if the errno corresponds to it.
var (
	// ErrNotSupported: the running kernel has no IPVS, neither built in nor as a module that it
	// could load.
	ErrNotSupported = errors.New("the kernel has no IPVS (module ip_vs)")
	// ErrNoService: the service does not exist (ESRCH).
	ErrNoService = errors.New("no such service")
	// ErrNoDestination: the service has no such destination (ENOENT of a command about a
	// destination).
	ErrNoDestination = errors.New("no such destination")
	// ErrNoModule: the scheduler or the persistence engine is neither in the kernel nor a module
	// that it could load (ENOENT of a command about a service).
	ErrNoModule = errors.New("no such scheduler or persistence engine")
	// ErrNotUnicast: the address of a new destination is a broadcast address of this machine, or
	// another address that does not belong to a single machine (EINVAL).
	ErrNotUnicast = errors.New("not an address of a single machine")
	// ErrExists: the service or the destination exists already (EEXIST).
	ErrExists = errors.New("exists already")
)
