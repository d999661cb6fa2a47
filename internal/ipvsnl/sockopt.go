package ipvsnl

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Socket options of IPVS. They return some data that generic netlink does not return, and other
// data at a fraction of the cost. They are of level IPPROTO_IP, need CAP_NET_ADMIN, and support
// only IPv4. If the length of the buffer does not match its contents, the kernel refuses the buffer
// and logs that.
//
// The layouts are right for kernels that align 64-bit numbers to 8 bytes. Other kernels refuse the
// sizes.
const (
	// IP_VS_SO_GET_SERVICES: all services, each with the number of its destinations
	GetServices = 64 + 1024 + 64 + 2
	// IP_VS_SO_GET_DESTS: the destinations of one service
	GetDestinations = GetServices + 2

	OutlinesStart = 8   // struct ip_vs_get_services: the number of services that there is room for
	OutlineSize   = 104 // struct ip_vs_service_entry, with statistics

	DestinationsStart = 24 // struct ip_vs_get_dests: the key of the service, and the room
	DestinationSize   = 96 // struct ip_vs_dest_entry
)

// Outline is the beginning of struct ip_vs_service_entry, up to the statistics
// (include/uapi/linux/ip_vs.h).
type Outline [48]byte

// OutlineOf encodes an IPv4 service with a number of destinations (ip_vs_copy_service).
func OutlineOf(s Service, destinations int) (o Outline) {
	native := binary.NativeEndian
	PutOutlineKey(o[:], s.ServiceKey)
	if s.FWMark != 0 {
		native.PutUint16(o[:], uint16(TCP)) // ip_vs_genl_parse_service
	}
	copy(o[16:32], s.Scheduler)
	native.PutUint32(o[32:], uint32(s.Flags|FlagHashed))
	native.PutUint32(o[36:], uint32(s.Timeout/time.Second))
	mask := s.Netmask.wire(FamilyIPv4)
	copy(o[40:], mask[:])
	native.PutUint32(o[44:], uint32(destinations))
	return o
}

// PutOutlineKey encodes the key of an IPv4 service, as in a request for its destinations.
func PutOutlineKey(b []byte, k ServiceKey) {
	binary.NativeEndian.PutUint32(b[12:], k.FWMark)
	if k.FWMark == 0 {
		binary.NativeEndian.PutUint16(b, uint16(k.Protocol))
		copy(b[4:8], k.Addr.AsSlice())
		binary.BigEndian.PutUint16(b[8:], k.Port)
	}
}

// OutlineDestination is the beginning of struct ip_vs_dest_entry, up to the numbers of connections.
type OutlineDestination [24]byte

// OutlineDestinationOf encodes an IPv4 destination. The kernel does not report the type of a
// tunnel.
func OutlineDestinationOf(d Destination) (o OutlineDestination) {
	copy(o[:4], d.Addr.AsSlice())
	binary.BigEndian.PutUint16(o[4:], d.Port)
	for i, n := range []uint32{uint32(d.Forward), d.Weight, d.UpperThreshold, d.LowerThreshold} {
		binary.NativeEndian.PutUint32(o[8+4*i:], n)
	}
	return o
}

// DestinationOutlined returns the outline at the beginning of b, and the key of its destination. It
// leaves out the flags that the kernel keeps next to the forwarding method (IP_VS_CONN_F_FWD_MASK).
func DestinationOutlined(b []byte) (k DestinationKey, o OutlineDestination) {
	o = OutlineDestination(b)
	native := binary.NativeEndian
	native.PutUint32(o[8:], native.Uint32(o[8:])&0x7)
	k.Addr, k.Port = netip.AddrFrom4([4]byte(b)), binary.BigEndian.Uint16(b[4:])
	return k, o
}
