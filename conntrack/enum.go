package conntrack

import (
	"strconv"
	"strings"
)

// Protocol is a transport protocol, numbered as in the IP header (IANA protocol numbers).
type Protocol uint8

// The protocols of services. A flow may have any other protocol.
const (
	TCP  Protocol = 6   // IPPROTO_TCP
	UDP  Protocol = 17  // IPPROTO_UDP
	SCTP Protocol = 132 // IPPROTO_SCTP
)

// Further protocols with a name.
const (
	protoICMP    Protocol = 1   // IPPROTO_ICMP
	protoGRE     Protocol = 47  // IPPROTO_GRE
	protoICMPv6  Protocol = 58  // IPPROTO_ICMPV6
	protoUDPLite Protocol = 136 // IPPROTO_UDPLITE
)

var protocolNames = map[Protocol]string{
	protoICMP: "icmp", TCP: "tcp", UDP: "udp", protoGRE: "gre", protoICMPv6: "icmpv6", SCTP: "sctp",
	protoUDPLite: "udplite",
}

// String returns the name that conntrack(8) prints, or the number if a protocol has no name.
func (p Protocol) String() string {
	if s, ok := protocolNames[p]; ok {
		return s
	}
	return strconv.Itoa(int(p))
}

// icmp reports whether tuples of p have an identifier, a type and a code instead of ports.
func (p Protocol) icmp() bool { return p == protoICMP || p == protoICMPv6 }

// nfFamily is an address family, numbered as netfilter numbers it.
type nfFamily uint8

// The families conntrack knows (NFPROTO_*, include/uapi/linux/netfilter.h). familyAny is only for
// filters.
const (
	familyAny  nfFamily = 0  // NFPROTO_UNSPEC
	familyIPv4 nfFamily = 2  // NFPROTO_IPV4
	familyIPv6 nfFamily = 10 // NFPROTO_IPV6
)

// String returns "ipv4", "ipv6" or "any".
func (f nfFamily) String() string {
	switch f {
	case familyAny:
		return "any"
	case familyIPv4:
		return "ipv4"
	case familyIPv6:
		return "ipv6"
	}

	return "family " + strconv.Itoa(int(f))
}

// Status is the set of status bits of a flow in the kernel (enum ip_conntrack_status,
// include/uapi/linux/netfilter/nf_conntrack_common.h).
type Status uint32

// The bits that this package uses.
const (
	StatusSeenReply    Status = 1 << 1  // IPS_SEEN_REPLY: packets went both ways
	StatusAssured      Status = 1 << 2  // IPS_ASSURED: not evicted when the table is full
	StatusDstNAT       Status = 1 << 5  // IPS_DST_NAT: the destination is translated, not by IPVS
	statusConfirmed    Status = 1 << 3  // IPS_CONFIRMED: its first packet has left the machine
	StatusFixedTimeout Status = 1 << 10 // IPS_FIXED_TIMEOUT: traffic does not extend it
	statusOffload      Status = 1 << 14 // IPS_OFFLOAD: in a flow table
	statusHWOffload    Status = 1 << 15 // IPS_HW_OFFLOAD: in the hardware
)

// statusNames are the names of all bits, in the kernel's order.
var statusNames = [...]string{
	"expected", "seen-reply", "assured", "confirmed", "src-nat", "dst-nat", "seq-adjust",
	"src-nat-done", "dst-nat-done", "dying", "fixed-timeout", "template", "untracked", "helper",
	"offload", "hw-offload",
}

// String returns the names of the bits that are set, such as
// "seen-reply|assured|confirmed|dst-nat"; bits without a name follow as one number.
func (s Status) String() string {
	if s == 0 {
		return "none"
	}
	var names []string
	for i, name := range statusNames {
		if bit := Status(1) << i; s&bit != 0 {
			names = append(names, name)
			s &^= bit
		}
	}

	if s != 0 {
		names = append(names, "0x"+strconv.FormatUint(uint64(s), 16))
	}
	return strings.Join(names, "|")
}

// TCPState is the state of a TCP connection as conntrack sees it (enum tcp_conntrack,
// include/uapi/linux/netfilter/nf_conntrack_tcp.h). Zero is the state of other protocols.
type TCPState uint8

// The states that this package uses.
const (
	tcpSynRecv     TCPState = 2 // TCP_CONNTRACK_SYN_RECV
	TCPEstablished TCPState = 3 // TCP_CONNTRACK_ESTABLISHED
	tcpFinWait     TCPState = 4 // TCP_CONNTRACK_FIN_WAIT
	tcpLastAck     TCPState = 6 // TCP_CONNTRACK_LAST_ACK
	tcpClose       TCPState = 8 // TCP_CONNTRACK_CLOSE: after a reset
)

// tcpStateNames are the names of all states, in the kernel's order.
var tcpStateNames = [...]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK",
	"TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// String returns the name that conntrack(8) prints, or the number of an unknown state.
func (s TCPState) String() string { return stateName(tcpStateNames[:], uint8(s)) }

// Open reports whether both peers may still consider the connection open. Then only a reset ends
// it.
func (s TCPState) Open() bool { return s >= tcpSynRecv && s <= tcpLastAck }

// SCTPState is the state of an SCTP association as conntrack sees it (enum sctp_conntrack,
// include/uapi/linux/netfilter/nf_conntrack_sctp.h). Zero is the state of other protocols.
type SCTPState uint8

// sctpStateNames are the names of the states, in the kernel's order.
var sctpStateNames = [...]string{
	"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT",
	"SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT",
}

// String returns the name that conntrack(8) prints, or the number of an unknown state.
func (s SCTPState) String() string { return stateName(sctpStateNames[:], uint8(s)) }

func stateName(names []string, state uint8) string {
	if int(state) < len(names) {
		return names[state]
	}
	return strconv.Itoa(int(state))
}
