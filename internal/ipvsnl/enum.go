package ipvsnl

import "fmt"

// Command is a command of the IPVS family of generic netlink (IPVS_CMD_*,
// include/uapi/linux/ip_vs.h). The commands about sync daemons are known by name only: nothing here
// sends them.
type Command uint8

// The commands, in the kernel's order.
const (
	CommandUnspec         Command = iota // IPVS_CMD_UNSPEC
	CommandNewService                    // IPVS_CMD_NEW_SERVICE
	CommandSetService                    // IPVS_CMD_SET_SERVICE
	CommandDelService                    // IPVS_CMD_DEL_SERVICE
	CommandGetService                    // IPVS_CMD_GET_SERVICE
	CommandNewDestination                // IPVS_CMD_NEW_DEST
	CommandSetDestination                // IPVS_CMD_SET_DEST
	CommandDelDestination                // IPVS_CMD_DEL_DEST
	CommandGetDestination                // IPVS_CMD_GET_DEST
	CommandNewDaemon                     // IPVS_CMD_NEW_DAEMON
	CommandDelDaemon                     // IPVS_CMD_DEL_DAEMON
	CommandGetDaemon                     // IPVS_CMD_GET_DAEMON
	CommandSetConfig                     // IPVS_CMD_SET_CONFIG
	CommandGetConfig                     // IPVS_CMD_GET_CONFIG
	CommandSetInfo                       // IPVS_CMD_SET_INFO: only the reply to GET_INFO
	CommandGetInfo                       // IPVS_CMD_GET_INFO
	CommandZero                          // IPVS_CMD_ZERO
	CommandFlush                         // IPVS_CMD_FLUSH
)

var commandNames = [...]string{
	"unspecified command", "new service", "set service", "delete service", "get service",
	"new destination", "set destination", "delete destination", "get destination",
	"new daemon", "delete daemon", "get daemon", "set config", "get config", "set info", "get info",
	"zero", "flush",
}

// String returns what the command does, for example "new service".
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

// ForwardingMethod is how packets reach a destination (IP_VS_CONN_F_*, include/uapi/linux/ip_vs.h).
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
	// IP_VS_CONN_F_BYPASS: to the original address; the kernel's own, for caches
	ForwardBypass
)

var forwardNames = [...]string{"masquerade", "local", "tunnel", "direct route", "bypass"}

// String returns the name of the method, for example "direct route".
func (m ForwardingMethod) String() string {
	return name(forwardNames[:], "forwarding method", uint32(m))
}

// name returns names[v], or kind and the number of a value that has no name.
func name(names []string, kind string, v uint32) string {
	if int64(v) < int64(len(names)) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s %d", kind, v)
}
