package ipvsnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Netmask says how many bits of a client's address count for persistence: clients that agree in
// these bits share a destination. The zero value means the whole address, in both families.
//
// The kernel wants an IPv4 netmask, which need not be contiguous, or an IPv6 prefix length from 1
// to 128 (svc->netmask; ip_vs_add_service in net/netfilter/ipvs/ip_vs_ctl.c). A Netmask is the
// complement of the IPv4 netmask, or 128 less the prefix length.
type Netmask uint32

// PrefixNetmask returns the netmask whose first n bits are set: 0 to 32 for IPv4, 1 to 128 for
// IPv6.
func PrefixNetmask(f Family, n int) Netmask {
	if f == FamilyIPv6 {
		return Netmask(128 - n)
	}
	return Netmask(uint64(1)<<(32-n) - 1)
}

// Text returns m as ipvsadm prints it: "255.255.255.0" for IPv4, "64" for IPv6.
func (m Netmask) Text(f Family) string {
	b := m.wire(f)
	if f == FamilyIPv6 {
		return fmt.Sprint(binary.NativeEndian.Uint32(b[:]))
	}
	return netip.AddrFrom4(b).String()
}

// wire encodes m for the family f: an IPv4 mask in network byte order, an IPv6 prefix length in the
// byte order of the machine.
func (m Netmask) wire(f Family) (b [4]byte) {
	if f == FamilyIPv6 {
		binary.NativeEndian.PutUint32(b[:], uint32(128-m))
	} else {
		binary.BigEndian.PutUint32(b[:], uint32(^m))
	}
	return b
}

// netmask is the inverse of wire.
func netmask(b [4]byte, f Family) Netmask {
	if f == FamilyIPv6 {
		return 128 - Netmask(binary.NativeEndian.Uint32(b[:]))
	}
	return ^Netmask(binary.BigEndian.Uint32(b[:]))
}
