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
		h := ok(decodeAddress(add))(t)
		require.Equal(t, listedAddr{a, 7, metric}, h)
	}
}

func TestAddressesAreAsLongAsTheirHeader(t *testing.T) {
	t.Parallel()
	_, err := decodeAddress(make([]byte, 7))
	require.ErrorContains(t, err, "an address of 7 bytes")
	l := ok(decodeAddress(make([]byte, 8)))(t)
	require.False(t, l.addr.IsValid())
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

// If an address is already on the device, or no longer where it was found, another program has
// moved it. A device that cannot be removed is an error.
func TestAddressesThatWereMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	k := &r.backend().kernel
	k.device, k.ifindex = "lo", 1
	a := netip.MustParseAddr("203.0.113.77")
	d := &devicePlan{bind: []netip.Addr{a}, release: []boundAddr{{a, k.ifindex, k.device}}}
	require.NoError(t, k.bindAll(d))
	require.ErrorIs(t, k.bindAll(d), errMoved)
	require.Contains(t, r.run("ip address show lo"), a.String())
	k.device = "none" // the bound address is then on another device
	l := ok(k.readAddresses())(t)
	require.Equal(t, []boundAddr{{a, 1, "lo"}}, l.bound)
	require.Contains(t, l.others, netip.IPv6Loopback())
	require.NotContains(t, l.others, a)
	require.NotContains(t, l.node, a)
	r.run("ip -6 address add fe80::77/64 dev lo") // clients cannot reach this one without a zone
	again := ok(k.readAddresses())(t)
	require.True(t, l.equal(&again))
	k.device, k.ifindex = "lo", 1
	require.NoError(t, k.releaseAll(d))
	require.ErrorIs(t, k.releaseAll(d), errMoved)
	require.NotContains(t, r.run("ip address show lo"), a.String())
	require.ErrorContains(t, k.releaseAll(&devicePlan{remove: []string{"lo"}}), "remove device lo")
	require.NoError(t, k.releaseAll(&devicePlan{remove: []string{"none"}}), "it is gone already")
}
