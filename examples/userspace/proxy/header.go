package proxy

import (
	"encoding/binary"
	"net/netip"
)

// header returns the header of version 2 of the PROXY protocol (proxy-protocol.txt of HAProxy,
// section 2.2) for a TCP connection from src to dst. Both must be of one family.
func header(src, dst netip.AddrPort) []byte {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	const command, ipv4, ipv6 = 0x21, 0x11, 0x21 // version 2 PROXY; TCP over IPv4 and IPv6
	family := byte(ipv4)
	if src.Addr().Is6() {
		family = ipv6
	}
	addrs := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	b := append([]byte(signature), command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(addrs)+4))
	b = append(b, addrs...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	return binary.BigEndian.AppendUint16(b, dst.Port())
}
