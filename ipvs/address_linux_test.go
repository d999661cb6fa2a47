package ipvs

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// addressBytes is the body of the request that binds an address to the link 7.
func addressBytes(a netip.Addr, metric uint32) (b []byte) {
	for _, part := range newAddress(a, 7, metric) {
		b = append(b, part.Serialize()...)
	}
	return b
}

func TestAddressBytes(t *testing.T) {
	t.Parallel()
	const metric = 0x6b001234
	for _, tc := range []struct{ addr, add string }{
		{"10.96.0.10", "022000fe07000000" + "080002000a60000a" + "080001000a60000a" +
			"0800080000020000" + "080009003412006b"},
		{"fd00::1", "0a80000007000000" + "14000200fd000000000000000000000000000001" +
			"14000100fd000000000000000000000000000001" +
			"0800080002020000" + "1400060000000000ffffffff0000000000000000" + "080009003412006b"},
	} {
		a := netip.MustParseAddr(tc.addr)
		add := addressBytes(a, metric)
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
			require.Equal(t, tc.add, hex.EncodeToString(add))
		}
		h, err := decodeAddress(add)
		require.NoError(t, err)
		require.Equal(t, listedAddr{a, 7, metric}, h)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add(addressBytes(netip.MustParseAddr("10.96.0.10"), 9))
	f.Add(addressBytes(netip.MustParseAddr("fd00::1"), 9))
	f.Add([]byte{2, 32, 0, 0, 1, 0, 0, 0, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeAddress(b)
		if err != nil || !h.addr.IsValid() {
			return
		}
		require.Equal(t, b[0] == 2, h.addr.Is4())
	})
}
