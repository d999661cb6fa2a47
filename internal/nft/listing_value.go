package nft

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// valueKind says how a value is written.
type valueKind uint8

const (
	valueHex valueKind = iota
	valueAddr
	valuePort
	valueProtocol
	valueName
	valueCTState
	valueNative
)

// operand is what a register holds.
type operand struct {
	at   uint32 // where, in bytes
	text string
	kind valueKind
	full int    // bytes of an address of which the beginning was loaded
	mask []byte // that it was and-ed with
}

// ctStates are the bits of the state of a flow, by their numbers.
var ctStates = [...]string{"invalid", "established", "related", "new", "", "", "untracked"}

// value writes a value that is compared with the operand.
func (o *operand) value(v []byte) string {
	switch {
	case o.kind == valueAddr && o.full > len(v):
		v = append(slices.Clone(v), make([]byte, o.full-len(v))...)
		a, _ := netip.AddrFromSlice(v)
		return a.String()
	case o.kind == valueAddr && (len(v) == 4 || len(v) == 16):
		a, _ := netip.AddrFromSlice(v)
		return a.String()
	case o.kind == valuePort && len(v) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(v)))
	case o.kind == valueProtocol && len(v) == 1:
		return servicemodel.Protocol(v[0]).String()
	case o.kind == valueName:
		if name := CString(v); len(name) < len(v) {
			return strconv.Quote(string(name))
		}
		return strconv.Quote(string(v) + "*")
	case (o.kind == valueNative || o.kind == valueCTState) && len(v) == 4:
		return o.native(binary.NativeEndian.Uint32(v))
	}
	return "0x" + hex.EncodeToString(v)
}

func (o *operand) native(n uint32) string {
	if o.kind != valueCTState || n == 0 {
		return fmt.Sprintf("0x%x", n)
	}
	var names []string
	for i, name := range ctStates {
		if n&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// prefixLen returns how many bits a mask has, and whether they are its first ones.
func prefixLen(mask []byte) (ones int, prefix bool) {
	prefix = true
	for i, b := range mask {
		prefix = prefix && (ones == 8*i || b == 0) && bits.LeadingZeros8(^b) == bits.OnesCount8(b)
		ones += bits.OnesCount8(b)
	}
	return ones, prefix
}
