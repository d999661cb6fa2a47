package netnstest

import (
	"encoding/binary"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

type packet struct {
	// Proto is the transport protocol. Src and Dst contain ports for TCP, UDP and SCTP, and port 0
	// otherwise.
	Proto    servicemodel.Protocol
	Src, Dst netip.AddrPort
	TCPFlags uint8 // the 14th byte of a TCP header
}

// Flags of a TCP header (RFC 9293, section 3.1).
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
)

// Sizes of headers without options.
const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	tcpHeaderLen  = 20
	udpHeaderLen  = 8
)

// decodePacket decodes an IP packet, whose end may be missing, and also returns its transport
// header and payload. ok is false if it cannot decode the packet. IPv6 extension headers are not
// skipped: they count as the protocol.
func decodePacket(b []byte) (p packet, transport []byte, ok bool) {
	if len(b) == 0 {
		return p, nil, false
	}
	var src, dst netip.Addr
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&0x0f) * 4
		if header < ipv4HeaderLen || len(b) < header {
			return p, nil, false
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.Proto, transport = servicemodel.Protocol(b[9]), payload(b, header,
			int(binary.BigEndian.Uint16(b[2:])))
	case 6:
		if len(b) < ipv6HeaderLen {
			return p, nil, false
		}
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		p.Proto, transport = servicemodel.Protocol(b[6]),
			payload(b, ipv6HeaderLen, ipv6HeaderLen+int(binary.BigEndian.Uint16(b[4:])))
	default:
		return p, nil, false
	}

	sport, dport := p.decodeTransport(transport)
	p.Src, p.Dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p, transport, true
}

// payload returns the bytes after the header, up to the packet's total length, unless that is zero
// or too large, for example because of offloads.
func payload(b []byte, header, total int) []byte {
	if total < header || total > len(b) {
		total = len(b)
	}
	return b[header:total]
}

// decodeTransport decodes the fields of a transport header that it knows, and returns the ports.
func (p *packet) decodeTransport(t []byte) (sport, dport uint16) {
	switch {
	case p.Proto == servicemodel.TCP && len(t) >= tcpHeaderLen:
		p.TCPFlags = t[13]
	case p.Proto == servicemodel.SCTP && len(t) > sctpHeaderLen:
	case p.Proto == servicemodel.UDP && len(t) >= udpHeaderLen:
	default:
		return 0, 0
	}

	return binary.BigEndian.Uint16(t[0:]), binary.BigEndian.Uint16(t[2:])
}

// encodePacket returns the IP packet with a transport header and payload. It fills in the checksum
// of TCP and UDP, which covers a pseudo header.
func encodePacket(proto servicemodel.Protocol, src, dst netip.Addr, transport []byte) []byte {
	switch proto {
	case servicemodel.TCP:
		binary.BigEndian.PutUint16(transport[16:], transportChecksum(proto, src, dst, transport))
	case servicemodel.UDP:
		binary.BigEndian.PutUint16(transport[6:], transportChecksum(proto, src, dst, transport))
	}

	const ttl = 64
	if src.Is6() {
		h := make([]byte, ipv6HeaderLen, ipv6HeaderLen+len(transport))
		h[0], h[6], h[7] = 6<<4, byte(proto), ttl
		binary.BigEndian.PutUint16(h[4:], uint16(len(transport)))
		copy(h[8:], src.AsSlice())
		copy(h[24:], dst.AsSlice())
		return append(h, transport...)
	}

	h := make([]byte, ipv4HeaderLen, ipv4HeaderLen+len(transport))
	h[0], h[8], h[9] = 4<<4|ipv4HeaderLen/4, ttl, byte(proto)
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4HeaderLen+len(transport)))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^fold(sum(h)))
	return append(h, transport...)
}

// transportChecksum computes the checksum of a TCP or UDP packet whose checksum field is zero (RFC
// 9293, section 3.1; RFC 768; RFC 8200, section 8.1).
func transportChecksum(proto servicemodel.Protocol, src, dst netip.Addr, transport []byte) uint16 {
	pseudo := sum(src.AsSlice()) + sum(dst.AsSlice()) + uint32(proto) + uint32(len(transport))
	c := ^fold(pseudo + sum(transport))
	if c == 0 && proto == servicemodel.UDP {
		return 0xffff // zero means "no checksum"
	}
	return c
}

// sum adds up 16-bit words (RFC 1071), enough for packets of some kilobytes.
func sum(b []byte) (s uint32) {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

// fold adds the carries of a sum.
func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
