package netnstest

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// extendedErr is a struct sock_extended_err from ICMP, and the sockaddr behind it.
func extendedErr(origin, typ, code byte, sockaddr ...byte) []byte {
	return append([]byte{111, 0, 0, 0, origin, typ, code, 0, 0, 0, 0, 0, 0, 0, 0, 0}, sockaddr...)
}

// family is the start of a sockaddr.
func family(f uint16) []byte { return binary.NativeEndian.AppendUint16(nil, f) }

func TestICMPErrorsAreDecoded(t *testing.T) {
	t.Parallel()
	v4 := append(family(unix.AF_INET), 0, 0, 10, 0, 0, 1)
	v6 := append(append(family(unix.AF_INET6), make([]byte, 6)...), netip.MustParseAddr("fd00::1").
		AsSlice()...)
	e, ok := decodeExtendedErr(extendedErr(unix.SO_EE_ORIGIN_ICMP, 3, 3, v4...))
	require.True(t, ok)
	require.Equal(t, "icmp port unreachable from 10.0.0.1", e.String())
	require.True(t, e.refuses())
	e, ok = decodeExtendedErr(extendedErr(unix.SO_EE_ORIGIN_ICMP6, 1, 1, v6...))
	require.True(t, ok)
	require.Equal(t, "icmpv6 type 1 code 1 from fd00::1", e.String())
	require.False(t, e.refuses())
	for name, b := range map[string][]byte{
		"too short":           extendedErr(unix.SO_EE_ORIGIN_ICMP, 3, 3)[:extendedErrLen-1],
		"no sender":           extendedErr(unix.SO_EE_ORIGIN_ICMP, 3, 3),
		"from the kernel":     extendedErr(unix.SO_EE_ORIGIN_LOCAL, 0, 0, v4...),
		"half an IPv6 sender": extendedErr(unix.SO_EE_ORIGIN_ICMP6, 1, 4, v6[:20]...),
		"sender of another kind": extendedErr(unix.SO_EE_ORIGIN_ICMP, 3, 3,
			append(family(unix.AF_UNIX), v4[2:]...)...),
	} {
		_, ok := decodeExtendedErr(b)
		require.False(t, ok, name)
	}
}
