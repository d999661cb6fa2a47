package conntrack

import (
	"encoding/binary"
	"net/netip"
)

const (
	protocolTCP = 6
	tcpHeader   = 20
	ipv4Header  = 20
	ipv6Header  = 40
	hopLimit    = 64

	flagSYN = 0x02
	flagACK = 0x10
)

// synAck returns an IP packet with a TCP segment that has SYN and ACK set and nothing else: no data, no options,
// no window.
//
// A TCP that has a connection between these ends answers a SYN, whatever its sequence number, with an
// acknowledgement of what it has received so far (RFC 9293 section 3.10.7.4, RFC 5961 section 4.2), and is
// not otherwise impressed. SYN alone would be taken for a new connection by what stands in between. The
// acknowledgement number is 1, not 0, so that conntrack does not take the segment for the answer to a SYN: of
// the last one it saw in a flow that ctnetlink made, it remembers 0.
func synAck(src, dst netip.AddrPort) []byte {
	segment := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(segment[0:], src.Port())
	binary.BigEndian.PutUint16(segment[2:], dst.Port())
	binary.BigEndian.PutUint32(segment[8:], 1)
	segment[12] = tcpHeader / 4 << 4
	segment[13] = flagSYN | flagACK
	binary.BigEndian.PutUint16(segment[16:], tcpChecksum(src.Addr(), dst.Addr(), segment))
	if src.Addr().Is4() {
		return append(ipv4(src.Addr(), dst.Addr(), len(segment)), segment...)
	}
	return append(ipv6(src.Addr(), dst.Addr(), len(segment)), segment...)
}

// ipv4 returns an IPv4 header (RFC 791). The kernel fills in the identification and the checksum (raw(7),
// IP_HDRINCL).
func ipv4(src, dst netip.Addr, payload int) []byte {
	h := make([]byte, ipv4Header, ipv4Header+payload)
	h[0] = 4<<4 | ipv4Header/4
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Header+payload))
	h[8], h[9] = hopLimit, protocolTCP
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	return h
}

// ipv6 returns an IPv6 header (RFC 8200).
func ipv6(src, dst netip.Addr, payload int) []byte {
	h := make([]byte, ipv6Header, ipv6Header+payload)
	h[0] = 6 << 4
	binary.BigEndian.PutUint16(h[4:], uint16(payload))
	h[6], h[7] = protocolTCP, hopLimit
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return h
}

// tcpChecksum returns the checksum of a segment of even length whose checksum field is 0 (RFC 9293 section 3.1). The
// pseudo headers of IPv4 and IPv6 add up to the same sum.
func tcpChecksum(src, dst netip.Addr, segment []byte) uint16 {
	sum := uint32(protocolTCP) + uint32(len(segment))
	for _, b := range [][]byte{src.AsSlice(), dst.AsSlice(), segment} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
