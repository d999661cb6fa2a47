package ipvsnl

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Attributes of the first level of a message, in the kernel's order.
const (
	CmdAttrService       uint16 = iota + 1 // IPVS_CMD_ATTR_SERVICE
	CmdAttrDestination                     // IPVS_CMD_ATTR_DEST
	CmdAttrDaemon                          // IPVS_CMD_ATTR_DAEMON
	CmdAttrTimeoutTCP                      // IPVS_CMD_ATTR_TIMEOUT_TCP
	CmdAttrTimeoutTCPFin                   // IPVS_CMD_ATTR_TIMEOUT_TCP_FIN
	CmdAttrTimeoutUDP                      // IPVS_CMD_ATTR_TIMEOUT_UDP
)

// Wire is what a message says of a service and a destination.
type Wire struct {
	Service     WireService     // without attributes if the message has none
	Destination WireDestination // likewise
}

// Parse parses the attributes of a message about a service or a destination.
func Parse(attrs []byte) (w Wire, err error) {
	it := rawnl.Attrs(attrs)
	for it.Next() && err == nil {
		switch it.Type() {
		case CmdAttrService:
			w.Service, err = parseService(it.Data())
		case CmdAttrDestination:
			w.Destination, err = parseDestination(it.Data())
		}
	}
	if err == nil {
		err = it.Err()
	}
	return w, err
}

const addrLen = 16 // union nf_inet_addr, for IPv4 too

// putAddr appends addr as a union nf_inet_addr: 16 bytes, of which IPv4 uses the first 4.
func putAddr(b *rawnl.Batch, typ uint16, addr netip.Addr) {
	var u [addrLen]byte
	if addr.Is4() {
		a := addr.As4()
		copy(u[:], a[:])
	} else {
		u = addr.As16()
	}
	b.Attr(typ, u[:])
}

// wireAddr is an address of a message before it is known to which family it belongs.
type wireAddr struct {
	bytes [addrLen]byte
	len   int
}

// addr returns the data as the beginning of a union nf_inet_addr.
func addr(it *rawnl.AttrIter) (u wireAddr) {
	if n := len(it.Data()); n > addrLen {
		it.Fail("has %d bytes of data, want at most %d", n, addrLen)
		return u
	}
	u.len = copy(u.bytes[:], it.Data())
	return u
}

// in reads u as an address of the family f.
func (u wireAddr) in(f Family) (netip.Addr, error) {
	switch {
	case f == FamilyIPv4 && u.len >= 4:
		return netip.AddrFrom4([4]byte(u.bytes[:4])), nil
	case f == FamilyIPv6 && u.len == addrLen:
		return netip.AddrFrom16(u.bytes), nil
	case f == FamilyIPv4 || f == FamilyIPv6:
		return netip.Addr{}, malformed("an address of %v has %d bytes", f, u.len)
	}
	return netip.Addr{}, malformed("an address of %v", f)
}

// count returns a number of 4 or 8 bytes. The kernel puts a padding attribute before numbers of 8
// bytes where they would not be aligned otherwise.
func count(it *rawnl.AttrIter) uint64 {
	if len(it.Data()) == 4 {
		return uint64(it.NativeU32())
	}
	return it.NativeU64()
}

// text returns a NUL-terminated string of at most limit bytes.
func text(it *rawnl.AttrIter, limit int) string {
	n := len(it.Data()) - 1
	switch {
	case n < 0 || it.Data()[n] != 0:
		it.Fail("is not a terminated string")
	case n > limit:
		it.Fail("is a string of %d bytes, want at most %d", n, limit)
	default:
		return string(it.Data()[:n])
	}
	return ""
}

// malformed returns an [rawnl.ErrMalformed].
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rawnl.ErrMalformed, fmt.Sprintf(format, args...))
}

// attrSet is a set of attribute types below 32.
type attrSet uint32

// with returns s and typ; a type that does not fit is left out, and is unknown here anyway.
func (s attrSet) with(typ uint16) attrSet {
	if typ < 32 {
		s |= 1 << typ
	}
	return s
}

// has reports whether s has all of types.
func (s attrSet) has(types ...uint16) bool {
	for _, typ := range types {
		if s&(1<<typ) == 0 {
			return false
		}
	}
	return true
}
