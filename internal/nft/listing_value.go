package nft

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// valueKind selects the text form of a value.
type valueKind uint8

const (
	valueHex valueKind = iota
	valueAddr
	valuePort
	valueProtocol
	valueName
	valueInterface
	valueFamily
	valueMark
	valueNumber
	valueSmall // a number of one byte
	valueCTState
	valueCTStatus
	valueTCPFlags
	valueICMPType
	valueICMPv6Type
	valueAddrType
)

// operand is the content of a register.
type operand struct {
	at   int // its offset in bytes
	text string
	// second is the text of the next header field, if one load read both fields.
	second string
	kind   valueKind
	full   int    // the length of the address, if only its beginning was loaded
	mask   []byte // the mask that was applied to the value
	raw    []byte // an immediate value
	asks   *header
}

// Named protocols that services do not use.
const (
	protocolICMP   servicemodel.Protocol = 1
	protocolICMPv6 servicemodel.Protocol = 58
)

// protocolNames are the names in /etc/protocols that nft writes.
var protocolNames = map[servicemodel.Protocol]string{protocolICMP: "icmp", 2: "igmp", 4: "ipencap",
	33: "dccp", 41: "ipv6", 47: "gre", 50: "esp", 51: "ah", protocolICMPv6: "ipv6-icmp", 89: "ospf",
	103: "pim", 112: "vrrp", 136: "udplite"}

func protocolName(p servicemodel.Protocol) string {
	if name := protocolNames[p]; name != "" {
		return name
	}
	if p.Valid() {
		return p.String()
	}
	return strconv.Itoa(int(p))
}

// bitNames are the names of bits, by their numbers.
var bitNames = map[valueKind][]string{
	valueCTState: {"invalid", "established", "related", "new", "", "", "untracked"},
	valueCTStatus: {"expected", "seen-reply", "assured", "confirmed", "snat", "dnat", "", "", "",
		"dying"},
	valueTCPFlags: {"fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"},
}

// valueNames are the names of numbers.
var valueNames = map[valueKind]map[uint32]string{
	valueFamily: {2: "ipv4", 10: "ipv6"},
	valueAddrType: {1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast",
		6: "blackhole", 7: "unreachable", 8: "prohibit"},
	valueICMPType: {0: "echo-reply", 3: "destination-unreachable", 4: "source-quench",
		5: "redirect", 8: "echo-request", 9: "router-advertisement", 10: "router-solicitation",
		11: "time-exceeded", 12: "parameter-problem"},
	valueICMPv6Type: {1: "destination-unreachable", 2: "packet-too-big", 3: "time-exceeded",
		4: "parameter-problem", 128: "echo-request", 129: "echo-reply", 130: "mld-listener-query",
		131: "mld-listener-report", 132: "mld-listener-done", 133: "nd-router-solicit",
		134: "nd-router-advert", 135: "nd-neighbor-solicit", 136: "nd-neighbor-advert",
		137: "nd-redirect"},
}

// value writes a value that is compared with the operand.
func (o *operand) value(v []byte) string {
	switch {
	case o.kind == valueAddr && (o.full > len(v) || len(v) == 4 || len(v) == 16):
		a, _ := netip.AddrFromSlice(append(slices.Clone(v), make([]byte, max(0, o.full-len(v)))...))
		return a.String()
	case o.kind == valuePort && len(v) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(v)))
	case o.kind == valueProtocol && len(v) == 1:
		return protocolName(servicemodel.Protocol(v[0]))
	case o.kind == valueName:
		if name := CString(v); len(name) < len(v) {
			return strconv.Quote(string(name))
		}
		return strconv.Quote(string(v) + "*")
	case o.kind != valueHex && len(v) == 1:
		return o.number(uint32(v[0]))
	case o.kind != valueHex && len(v) == 4:
		return o.number(binary.NativeEndian.Uint32(v))
	}

	return "0x" + hex.EncodeToString(v)
}

// number writes a value that is a number.
func (o *operand) number(n uint32) string {
	if name := valueNames[o.kind][n]; name != "" {
		return name
	}
	switch o.kind {
	case valueMark:
		return fmt.Sprintf("0x%08x", n)
	case valueInterface:
		// lo has this index in every network namespace; the names of other indices are unknown
		if n == 1 {
			return `"lo"`
		}
	case valueCTState, valueCTStatus, valueTCPFlags:
		var names []string
		for i, name := range bitNames[o.kind] {
			if n&(1<<i) != 0 && name != "" {
				names = append(names, name)
			}
		}

		if names != nil {
			return strings.Join(names, ",")
		}
		return fmt.Sprintf("0x%x", n)
	}

	return strconv.FormatUint(uint64(n), 10)
}

// prefixLen returns the number of bits in a mask, and whether they are its first bits.
func prefixLen(mask []byte) (ones int, prefix bool) {
	prefix = true
	for i, b := range mask {
		prefix = prefix && (ones == 8*i || b == 0) && bits.LeadingZeros8(^b) == bits.OnesCount8(b)
		ones += bits.OnesCount8(b)
	}

	return ones, prefix
}
