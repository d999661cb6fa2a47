package ipvsnl

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Netmask says how many bits of a client's address count for persistence: clients that agree in
// them share a destination. The zero value means the whole address, in both families.
//
// The kernel wants an IPv4 netmask, which need not be contiguous, or an IPv6 prefix length from 1
// to 128 (svc->netmask; ip_vs_add_service in net/netfilter/ipvs/ip_vs_ctl.c). Held here is what
// differs from that.
type Netmask struct {
	ignored uint32 // IPv4: the complement of the mask. IPv6: 128 less the prefix length.
}

// PrefixNetmask returns the netmask of which the first n bits are set: 0 to 32 for IPv4, 1 to 128
// for IPv6.
func PrefixNetmask(f Family, n int) (Netmask, error) {
	switch {
	case f == FamilyIPv4 && n >= 0 && n <= 32:
		return Netmask{ignored: uint32(uint64(1)<<(32-n) - 1)}, nil
	case f == FamilyIPv6 && n >= 1 && n <= 128:
		return Netmask{ignored: uint32(128 - n)}, nil
	}
	return Netmask{}, fmt.Errorf("%w: netmask: no prefix of %d bits in %v", ErrInvalid, n, f)
}

// IPv4Netmask returns the netmask with the bits of an address, which need not be contiguous.
func IPv4Netmask(mask [4]byte) Netmask {
	return Netmask{ignored: ^binary.BigEndian.Uint32(mask[:])}
}

// Bits returns how many leading bits m has in the family f. It is false for an IPv4 mask that is
// not contiguous.
func (m Netmask) Bits(f Family) (n int, ok bool) {
	if f == FamilyIPv6 {
		return 128 - int(m.ignored), m.ignored < 128
	}
	n = bits.LeadingZeros32(m.ignored)
	return n, m.ignored == uint32(uint64(1)<<(32-n)-1)
}

// Text returns m as ipvsadm prints it: "255.255.255.0" for IPv4, "64" for IPv6.
func (m Netmask) Text(f Family) string {
	if f == FamilyIPv6 {
		return fmt.Sprint(128 - int64(m.ignored))
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^m.ignored)
	return netip.AddrFrom4(b).String()
}

// valid reports whether the kernel takes m in the family f.
func (m Netmask) valid(f Family) bool { return f != FamilyIPv6 || m.ignored < 128 }

// putNetmask appends m for the family f: an IPv4 mask in network byte order, an IPv6 prefix length
// in the byte order of the machine.
func putNetmask(b *rawnl.Batch, typ uint16, f Family, m Netmask) {
	if f == FamilyIPv6 {
		b.NativeU32(typ, 128-m.ignored)
	} else {
		b.U32(typ, ^m.ignored)
	}
}

// wireNetmask is a netmask of a message before it is known to which family it belongs.
type wireNetmask [4]byte

// in reads w in the family f.
func (w wireNetmask) in(f Family) (Netmask, error) {
	if f != FamilyIPv6 {
		return IPv4Netmask(w), nil
	}
	n := binary.NativeEndian.Uint32(w[:])
	if n > 128 {
		return Netmask{}, malformed("an IPv6 prefix length of %d", n)
	}
	return Netmask{ignored: 128 - n}, nil
}
