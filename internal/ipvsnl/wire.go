package ipvsnl

import (
	"cmp"
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

// Wire is the service and the destination in a message.
type Wire struct {
	Service     WireService     // zero if the message has none
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
	return w, cmp.Or(err, it.Err())
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

// wireAddr is an address in a message whose family is not known yet: the beginning of a union
// nf_inet_addr.
type wireAddr []byte

func addr(it *rawnl.AttrIter) wireAddr {
	if n := len(it.Data()); n > addrLen {
		it.Fail("has %d bytes of data, want at most %d", n, addrLen)
		return nil
	}
	return it.Data()
}

// in decodes u in the family f.
func (u wireAddr) in(f Family) (netip.Addr, error) {
	switch {
	case f == FamilyIPv4 && len(u) >= 4:
		return netip.AddrFrom4([4]byte(u)), nil
	case f == FamilyIPv6 && len(u) == addrLen:
		return netip.AddrFrom16([addrLen]byte(u)), nil
	}
	return netip.Addr{}, malformed("an address of %v has %d bytes", f, len(u))
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

// malformed makes an error that matches [rawnl.ErrMalformed].
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rawnl.ErrMalformed, fmt.Sprintf(format, args...))
}

// about adds to an error which object is malformed.
func about(object string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", object, err)
	}
	return err
}

// attrSet is a set of attribute types below 32.
type attrSet uint32

// with returns s and typ. It leaves out a type of 32 or more, which this package does not know
// anyway.
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
