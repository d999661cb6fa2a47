package ipvsfake

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Sockopt reads a socket option of IPVS into b, which begins with what is asked for.
func (k *Kernel) Sockopt(option int, b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch option {
	case ipvsnl.GetServices:
		return k.getServices(b)
	case ipvsnl.GetDestinations:
		return k.getDestinations(b)
	}
	return syscall.EINVAL
}

// getServices writes the services of IPv4 into a struct ip_vs_get_services, as many as it says that
// it has room for.
func (k *Kernel) getServices(b []byte) error {
	const start, size = 8, 104 // struct ip_vs_service_entry, with 64-bit numbers aligned to 8 bytes
	if len(b) < start || len(b) != start+size*int(binary.NativeEndian.Uint32(b)) {
		return syscall.EINVAL
	}
	b = b[start:]
	for _, s := range k.order {
		if s.Family == ipvsnl.FamilyIPv4 && len(b) > 0 {
			putEntry(b[:size], s)
			b = b[size:]
		}
	}
	return nil
}

// getDestinations writes the destinations of a service into a struct ip_vs_get_dests, as many as it
// says that it has room for.
func (k *Kernel) getDestinations(b []byte) error {
	const start, size = 24, 96 // struct ip_vs_dest_entry
	native := binary.NativeEndian
	if len(b) < start || len(b) != start+size*int(native.Uint32(b[16:])) {
		return syscall.EINVAL
	}
	key := ipvsnl.AddressService(ipvsnl.Protocol(native.Uint16(b)), netip.AddrPortFrom(
		netip.AddrFrom4([4]byte(b[4:])), binary.BigEndian.Uint16(b[8:])))
	if mark := native.Uint32(b[12:]); mark != 0 {
		key = ipvsnl.MarkService(ipvsnl.FamilyIPv4, mark)
	}
	s := k.services[key]
	if s == nil {
		return syscall.ESRCH
	}
	b = b[start:]
	for _, d := range s.destinations {
		if !d.Addr.Is4() || len(b) == 0 {
			continue
		}
		copy(b, d.Addr.AsSlice())
		binary.BigEndian.PutUint16(b[4:], d.Port)
		native.PutUint32(b[8:], uint32(d.Forward))
		native.PutUint32(b[12:], d.Weight)
		native.PutUint32(b[16:], d.UpperThreshold)
		native.PutUint32(b[20:], d.LowerThreshold)
		native.PutUint32(b[24:], d.ActiveConns)
		b = b[size:]
	}
	return nil
}

// putEntry writes a struct ip_vs_service_entry (ip_vs_copy_service).
func putEntry(b []byte, s *service) {
	clear(b)
	native := binary.NativeEndian
	mask := netip.IPv4Unspecified().As4()
	if bits, ok := s.Netmask.Bits(ipvsnl.FamilyIPv4); ok {
		binary.BigEndian.PutUint32(mask[:], ^uint32(uint64(1)<<(32-bits)-1))
	}
	protocol := s.Protocol
	if s.FWMark != 0 {
		protocol = ipvsnl.TCP // ip_vs_genl_parse_service
	} else {
		copy(b[4:], s.Addr.AsSlice())
		binary.BigEndian.PutUint16(b[8:], s.Port)
	}
	native.PutUint16(b, uint16(protocol))
	native.PutUint32(b[12:], s.FWMark)
	copy(b[16:32], s.Scheduler)
	native.PutUint32(b[32:], uint32(s.Flags|ipvsnl.FlagHashed))
	native.PutUint32(b[36:], uint32(s.Timeout/time.Second))
	copy(b[40:], mask[:])
	native.PutUint32(b[44:], uint32(len(s.destinations)))
	native.PutUint32(b[48:], uint32(s.Stats.Connections))
}
