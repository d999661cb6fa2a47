package ipvsnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// native is the byte order of netlink headers and of all numbers of IPVS except ports.
var native = binary.NativeEndian

const (
	attrHeaderLen        = 4      // struct nlattr
	attrNested    uint16 = 0x8000 // NLA_F_NESTED
	attrTypeMask  uint16 = 0x3fff // NLA_TYPE_MASK
	addrLen              = 16     // union nf_inet_addr, for IPv4 too
)

// align rounds n up to a multiple of 4.
//
//	#define NLA_ALIGN(len) (((len) + NLA_ALIGNTO - 1) & ~(NLA_ALIGNTO - 1))
func align(n int) int { return (n + 3) &^ 3 }

// appendAttrHeader appends the header of an attribute with n bytes of data. The caller appends the
// data and its padding.
func appendAttrHeader(b []byte, typ uint16, n int) []byte {
	b = native.AppendUint16(b, uint16(attrHeaderLen+n))
	return native.AppendUint16(b, typ)
}

// appendU8 appends one byte.
func appendU8(b []byte, typ uint16, v uint8) []byte {
	return append(appendAttrHeader(b, typ, 1), v, 0, 0, 0)
}

// appendU16 appends v in the byte order of the machine.
func appendU16(b []byte, typ, v uint16) []byte {
	return append(native.AppendUint16(appendAttrHeader(b, typ, 2), v), 0, 0)
}

// appendPort appends v in network byte order.
func appendPort(b []byte, typ, v uint16) []byte {
	return append(binary.BigEndian.AppendUint16(appendAttrHeader(b, typ, 2), v), 0, 0)
}

// appendU32 appends v in the byte order of the machine.
func appendU32(b []byte, typ uint16, v uint32) []byte {
	return native.AppendUint32(appendAttrHeader(b, typ, 4), v)
}

// appendU64 appends v in the byte order of the machine. The kernel puts a padding attribute before
// numbers of 8 bytes where they would not be aligned otherwise; no reader needs it.
func appendU64(b []byte, typ uint16, v uint64) []byte {
	return native.AppendUint64(appendAttrHeader(b, typ, 8), v)
}

// appendText appends s as a NUL-terminated string.
func appendText(b []byte, typ uint16, s string) []byte {
	n := len(s) + 1
	b = append(appendAttrHeader(b, typ, n), s...)
	for range 1 + align(n) - n {
		b = append(b, 0)
	}
	return b
}

// appendAddr appends addr as a union nf_inet_addr: 16 bytes, of which IPv4 uses the first 4.
func appendAddr(b []byte, typ uint16, addr netip.Addr) []byte {
	b = appendAttrHeader(b, typ, addrLen)
	if addr.Is4() {
		a := addr.As4()
		return append(append(b, a[:]...), make([]byte, addrLen-len(a))...)
	}
	a := addr.As16()
	return append(b, a[:]...)
}

// beginNest appends the header of an attribute that holds attributes. endNest, given mark, sets its
// length.
func beginNest(b []byte, typ uint16) (_ []byte, mark int) {
	return appendAttrHeader(b, typ|attrNested, 0), len(b)
}

// endNest ends the attribute begun at mark.
func endNest(b []byte, mark int) []byte {
	native.PutUint16(b[mark:], uint16(len(b)-mark))
	return b
}

// attrs walks over the attributes of a message of the kernel. The first mistake found sticks: next
// returns false from then on, and err says what was wrong.
type attrs struct {
	what string // what the attributes describe, for errors
	rest []byte
	typ  uint16
	data []byte
	err  error
}

// next moves to the next attribute.
func (a *attrs) next() bool {
	if a.err != nil || len(a.rest) == 0 {
		return false
	}
	if len(a.rest) < attrHeaderLen {
		a.err = fmt.Errorf("%w: %s: %d bytes after the last attribute", ErrMalformed, a.what,
			len(a.rest))
		return false
	}
	n := int(native.Uint16(a.rest))
	if n < attrHeaderLen || n > len(a.rest) {
		a.err = fmt.Errorf("%w: %s: an attribute claims %d bytes, %d are there", ErrMalformed,
			a.what, n, len(a.rest))
		return false
	}
	a.typ = native.Uint16(a.rest[2:]) & attrTypeMask
	a.data = a.rest[attrHeaderLen:n:n]
	a.rest = a.rest[min(align(n), len(a.rest)):]
	return true
}

// fixed returns the data of the attribute if it has n bytes.
func (a *attrs) fixed(n int) []byte {
	if len(a.data) != n {
		a.fail("has %d bytes, want %d", len(a.data), n)
		return make([]byte, n)
	}
	return a.data
}

// fail remembers what is wrong with the attribute.
func (a *attrs) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf("%w: %s: attribute %d %s", ErrMalformed, a.what, a.typ,
			fmt.Sprintf(format, args...))
	}
}

func (a *attrs) u8() uint8    { return a.fixed(1)[0] }
func (a *attrs) u16() uint16  { return native.Uint16(a.fixed(2)) }
func (a *attrs) u32() uint32  { return native.Uint32(a.fixed(4)) }
func (a *attrs) port() uint16 { return binary.BigEndian.Uint16(a.fixed(2)) }

// count returns a number of 4 or 8 bytes.
func (a *attrs) count() uint64 {
	if len(a.data) == 4 {
		return uint64(a.u32())
	}
	return native.Uint64(a.fixed(8))
}

// text returns a NUL-terminated string of at most limit bytes.
func (a *attrs) text(limit int) string {
	n := len(a.data) - 1
	if n < 0 || a.data[n] != 0 {
		a.fail("is not a terminated string")
		return ""
	}
	if n > limit {
		a.fail("is a string of %d bytes, want at most %d", n, limit)
		return ""
	}
	return string(a.data[:n])
}

// addr returns the data as the beginning of a union nf_inet_addr.
func (a *attrs) addr() (u wireAddr) {
	if len(a.data) > addrLen {
		a.fail("has %d bytes, want at most %d", len(a.data), addrLen)
		return u
	}
	u.len = copy(u.bytes[:], a.data)
	return u
}

// wireAddr is an address of a message before it is known to which family it belongs.
type wireAddr struct {
	bytes [addrLen]byte
	len   int
}

// in reads u as an address of the family f.
func (u wireAddr) in(f Family) (netip.Addr, error) {
	switch {
	case f == FamilyIPv4 && u.len >= 4:
		return netip.AddrFrom4([4]byte(u.bytes[:4])), nil
	case f == FamilyIPv6 && u.len == addrLen:
		return netip.AddrFrom16(u.bytes), nil
	case f == FamilyIPv4 || f == FamilyIPv6:
		return netip.Addr{}, fmt.Errorf("%w: an address of %v has %d bytes", ErrMalformed, f, u.len)
	}
	return netip.Addr{}, fmt.Errorf("%w: an address of %v", ErrMalformed, f)
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
