package ipvsfake

import (
	"encoding/binary"
	"syscall"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Sockopt reads a socket option of IPVS into b: the IPv4 services, or the destinations of one of
// them. b begins with the request, which says for how many it has room.
func (k *Kernel) Sockopt(option int, b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	start, size, at := ipvsnl.OutlinesStart, ipvsnl.OutlineSize, 0
	var entries [][]byte
	switch option {
	case ipvsnl.GetServices:
		for _, s := range k.order {
			if s.Family == ipvsnl.FamilyIPv4 {
				o := ipvsnl.OutlineOf(s.Service, len(s.destinations))
				entries = append(entries, o[:])
			}
		}
	case ipvsnl.GetDestinations:
		start, size, at = ipvsnl.DestinationsStart, ipvsnl.DestinationSize, 16
		s := k.outlined(b)
		if s == nil {
			return syscall.ESRCH
		}
		for _, d := range s.destinations {
			if d.Addr.Is4() {
				o := ipvsnl.OutlineDestinationOf(d.Destination)
				entries = append(entries, o[:])
			}
		}
	}
	if len(b) < start || len(b) != start+size*int(binary.NativeEndian.Uint32(b[at:])) {
		return syscall.EINVAL
	}
	for i := 0; i < len(entries) && start+i*size < len(b); i++ {
		copy(b[start+i*size:], entries[i])
	}
	return nil
}

// outlined returns the service that a request for destinations names, nil if there is none.
func (k *Kernel) outlined(request []byte) *service {
	for _, s := range k.order {
		var key [16]byte
		ipvsnl.PutOutlineKey(key[:], s.ServiceKey)
		if s.Family == ipvsnl.FamilyIPv4 && [16]byte(request) == key {
			return s
		}
	}
	return nil
}
