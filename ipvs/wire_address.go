package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// Messages and attributes of rtnetlink (include/uapi/linux/rtnetlink.h, if_addr.h).
const (
	rtmNewAddr = 20
	rtmDelAddr = 21
	rtmGetAddr = 22

	ifaAddress    = 1 // IFA_ADDRESS
	ifaLocal      = 2 // IFA_LOCAL
	ifaCacheInfo  = 6 // IFA_CACHEINFO
	ifaFlags      = 8 // IFA_FLAGS
	ifaRtPriority = 9 // IFA_RT_PRIORITY, since Linux 4.18

	ifaFlagNoDAD         = 0x02
	ifaFlagNoPrefixRoute = 0x200

	scopeUniverse = 0
	scopeHost     = 254
)

// boundAddr is an address of ours on a device.
type boundAddr struct {
	addr  netip.Addr
	index int
	dev   string
}

func addressHeader(a netip.Addr, index int, scope byte) []byte {
	family := byte(2) // AF_INET
	if a.Is6() {
		family = 10 // AF_INET6
	}
	return binary.NativeEndian.AppendUint32([]byte{family, byte(a.BitLen()), 0, scope},
		uint32(index))
}

// newAddress is the body of RTM_NEWADDR that binds an address of a service, marked as ours by its
// metric. IPv4 addresses have the scope of the host, and IPv6 addresses are deprecated from the
// start: neither is chosen as the source of what goes elsewhere (inet_select_addr,
// ipv6_get_saddr_eval).
func newAddress(a netip.Addr, index int, metric uint32) []byte {
	scope, flags := byte(scopeHost), uint32(ifaFlagNoPrefixRoute)
	if a.Is6() {
		scope, flags = scopeUniverse, ifaFlagNoPrefixRoute|ifaFlagNoDAD
	}
	b := appendAttr(addressHeader(a, index, scope), ifaLocal, a.AsSlice())
	b = appendAttr(b, ifaAddress, a.AsSlice())
	b = appendAttr(b, ifaFlags, binary.NativeEndian.AppendUint32(nil, flags))
	if a.Is6() {
		// struct ifa_cacheinfo: preferred, valid, and two times that the kernel sets
		lifetimes := make([]byte, 16)
		binary.NativeEndian.PutUint32(lifetimes[4:], 0xffffffff)
		b = appendAttr(b, ifaCacheInfo, lifetimes)
	}
	return appendAttr(b, ifaRtPriority, binary.NativeEndian.AppendUint32(nil, metric))
}

// delAddress is the body of RTM_DELADDR that takes an address of a service away.
func delAddress(a netip.Addr, index int) []byte {
	b := appendAttr(addressHeader(a, index, scopeUniverse), ifaLocal, a.AsSlice())
	return appendAttr(b, ifaAddress, a.AsSlice())
}

// appendAttr appends an attribute whose data is a multiple of four bytes.
func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	return append(binary.NativeEndian.AppendUint16(b, typ), data...)
}

// heldAddr is an address that somebody has bound.
type heldAddr struct {
	addr   netip.Addr
	index  int
	metric uint32
}

// decodeAddress reads the body of RTM_NEWADDR. The address is invalid if the message has none of
// IPv4 or IPv6.
func decodeAddress(b []byte) (h heldAddr, err error) {
	if len(b) < 8 { // struct ifaddrmsg
		return h, fmt.Errorf("an address of %d bytes", len(b))
	}
	h.index = int(binary.NativeEndian.Uint32(b[4:]))
	var addr, local []byte
	it := nfnl.Attrs(b[8:])
	for it.Next() {
		switch it.Type() {
		case ifaAddress:
			addr = it.Data()
		case ifaLocal:
			local = it.Data()
		case ifaRtPriority:
			h.metric = it.NativeU32()
		}
	}
	if local != nil { // else, and between two ends of a link, the other is that of the peer
		addr = local
	}
	if a, ok := netip.AddrFromSlice(addr); ok && (b[0] == 2) == a.Is4() {
		h.addr = a
	}
	return h, it.Err()
}
