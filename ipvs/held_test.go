package ipvs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A range of sources that is not a prefix was written by another program. It is not part of a
// frontend.
func TestARangeThatIsNoPrefixIsNoSource(t *testing.T) {
	t.Parallel()
	k := sm.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: sm.TCP, Port: 80}
	raw := &rawTable{elems: map[string]map[string]nft.Elem{setSources: {}}}
	for _, l := range [][2]string{{"10.0.0.0", "10.0.0.255"}, {"10.0.1.1", "10.0.1.2"}} {
		key := func(a string) []byte {
			return nft.AppendAddr(slices.Clone(nft.AppendFrontend(nil, k)), netip.MustParseAddr(a))
		}
		raw.elems[setSources][l[0]] = nft.Elem{Key: key(l[0]), KeyEnd: key(l[1])}
	}

	require.Equal(t, map[sm.FrontendKey][]netip.Prefix{k: {netip.MustParsePrefix("10.0.0.0/24")}},
		readSources(nft.IPv4, raw))
}

// The netmask of persistence belongs to a virtual server if the frontend requests it, and to the
// configuration otherwise.
func TestANetmaskOfAFrontendIsHeld(t *testing.T) {
	t.Parallel()
	masked := func(bits int, prefix bool) *server {
		s := ipvsnl.Service{Netmask: ipvsnl.PrefixNetmask(ipvsnl.FamilyIPv4, bits),
			ServiceKey: ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.1:80"))}
		return &server{svc: s, prefix: prefix}
	}

	for _, prefix := range []bool{false, true} {
		require.Equal(t, !prefix, masked(16, prefix).holds(masked(24, prefix)))
		require.True(t, masked(24, prefix).holds(masked(24, prefix)))
	}
}
