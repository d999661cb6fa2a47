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
	flagPSH = 0x08
	flagACK = 0x10
)

// synAck returns an IP packet with a TCP segment that has only the flags SYN and ACK: no data, no
// options, no window.
//
// If TCP has a connection between these peers, it answers a SYN, whatever its sequence number, with
// an acknowledgement of everything it has received so far (RFC 9293 section 3.10.7.4, RFC 5961
// section 4.2), and changes nothing else. A firewall in between would treat a SYN alone as a new
// connection. The acknowledgement number is 1, not 0, so that conntrack does not mistake the
// segment for the answer to a SYN: in a flow that ctnetlink created, it remembers 0 as the last
// SYN.
//
// Linux does not answer if it has acknowledged an out-of-window segment in the half second before
// (tcp_invalid_ratelimit). One duplicate or late segment is enough.
func synAck(src, dst netip.AddrPort) []byte { return segment(src, dst, flagSYN|flagACK, nil) }

// stray returns an IP packet with a TCP segment with unexpected data. Linux always answers such a
// segment with an acknowledgement: tcp_oow_rate_limited in net/ipv4/tcp_input.c makes an exception
// for data. But a firewall on the path that checks sequence numbers may drop it as invalid. A peer
// accepts the data only if the sequence and acknowledgement numbers both fit by chance, as with an
// attacker who cannot see the connection (RFC 5961 section 5).
func stray(src, dst netip.AddrPort) []byte {
	return segment(src, dst, flagPSH|flagACK, make([]byte, 2))
}

// segment returns an IP packet with a TCP segment, with sequence number 0 and acknowledgement
// number 1. The length of the data must be even.
func segment(src, dst netip.AddrPort, flags byte, data []byte) []byte {
	s := make([]byte, tcpHeader, tcpHeader+len(data))
	binary.BigEndian.PutUint16(s[0:], src.Port())
	binary.BigEndian.PutUint16(s[2:], dst.Port())
	binary.BigEndian.PutUint32(s[8:], 1)
	s[12] = tcpHeader / 4 << 4
	s[13] = flags
	s = append(s, data...)
	binary.BigEndian.PutUint16(s[16:], tcpChecksum(src.Addr(), dst.Addr(), s))
	if src.Addr().Is4() {
		return append(ipv4(src.Addr(), dst.Addr(), len(s)), s...)
	}
	return append(ipv6(src.Addr(), dst.Addr(), len(s)), s...)
}

// ipv4 returns an IPv4 header (RFC 791). The kernel fills in the identification and the checksum
// (raw(7), IP_HDRINCL).
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

// tcpChecksum returns the checksum of a segment of even length whose checksum field is 0 (RFC 9293
// section 3.1). The pseudo headers of IPv4 and IPv6 add up to the same sum.
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
