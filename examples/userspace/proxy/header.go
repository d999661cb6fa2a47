package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Header is what a connection to an endpoint begins with, so that the endpoint learns who its
// client is: a header of the PROXY protocol (proxy-protocol.txt of HAProxy).
type Header uint8

// The headers.
const (
	NoHeader Header = iota
	ProxyV1         // a line of text
	ProxyV2         // binary
)

// ParseHeader returns the header of a name: "none", "v1" or "v2".
func ParseHeader(s string) (Header, error) {
	switch s {
	case "none":
		return NoHeader, nil
	case "v1":
		return ProxyV1, nil
	case "v2":
		return ProxyV2, nil
	}
	return NoHeader, fmt.Errorf("%q: must be none, v1 or v2", s)
}

// signature begins a header of version 2 (section 2.2).
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// encode returns the header of a TCP connection from src to dst, which are of one family.
func (h Header) encode(src, dst netip.AddrPort) []byte {
	switch h {
	case ProxyV1:
		family := "TCP4"
		if src.Addr().Is6() {
			family = "TCP6"
		}
		return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, src.Addr(), dst.Addr(),
			src.Port(), dst.Port())
	case ProxyV2:
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
	return nil
}
