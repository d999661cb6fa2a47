package ipvsnl

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// Keys that many tests use.
var (
	Web   = AddressService(TCP, netip.MustParseAddrPort("10.96.0.1:80"))
	DNS6  = AddressService(UDP, netip.MustParseAddrPort("[2001:db8::1]:53"))
	Marks = MarkService(FamilyIPv4, 7)
)

// Wanted returns a service with few settings.
func Wanted(k ServiceKey) Service { return Service{ServiceKey: k, Scheduler: "rr"} }

// Dest returns a destination with few settings.
func Dest(s string) Destination { return Destination{DestinationKey: DestKey(s), Weight: 1} }

// DestKey parses a key.
func DestKey(s string) DestinationKey {
	ap := netip.MustParseAddrPort(s)
	return DestinationKey{Addr: ap.Addr(), Port: ap.Port()}
}

// Unhex returns the bytes that s spells, ignoring spaces.
func Unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	return ok(hex.DecodeString(strings.ReplaceAll(s, " ", "")))(tb)
}

// Many returns commands that add services with a number of destinations each, and commands that
// remove the services.
func Many(services, destinations int) (add, remove []Op) {
	for i := range services {
		k := AddressService(TCP,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80))
		add = append(add, NewService(Wanted(k)))
		for j := range destinations {
			add = append(add, NewDestination(k, Dest(fmt.Sprintf("10.244.%d.%d:8080", j, i%256))))
		}
		remove = append(remove, DelService(k))
	}

	return add, remove
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

func TestServiceKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "FWM 7 IPv4", Marks.String())
	mapped := netip.MustParseAddrPort("[::ffff:10.96.0.1]:80")
	require.Equal(t, Web, AddressService(TCP, mapped))
	for _, o := range []string{"9.255.0.1:80", "10.96.0.0:443", "10.96.0.1:79"} {
		require.Negative(t, AddressService(UDP, netip.MustParseAddrPort(o)).Compare(Web), o)
	}
	require.Negative(t, Web.Compare(AddressService(UDP, mapped)))
	require.Negative(t, Web.Compare(DNS6))
	require.Negative(t, DNS6.Compare(Marks))
	require.Negative(t, Marks.Compare(MarkService(FamilyIPv6, 7)))
	require.Negative(t, MarkService(FamilyIPv6, 7).Compare(MarkService(FamilyIPv4, 8)))
}

func TestNetmasks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		family Family
		mask   Netmask
		text   string
		wire   string
	}{
		{FamilyIPv4, 0, "255.255.255.255", "ffffffff"},
		{FamilyIPv6, 0, "128", "80000000"},
		{FamilyIPv4, PrefixNetmask(FamilyIPv4, 24), "255.255.255.0", "ffffff00"},
		{FamilyIPv4, PrefixNetmask(FamilyIPv4, 0), "0.0.0.0", "00000000"},
		{FamilyIPv6, PrefixNetmask(FamilyIPv6, 64), "64", "40000000"},
		{FamilyIPv6, PrefixNetmask(FamilyIPv6, 1), "1", "01000000"},
		{FamilyIPv4, 0x00ff0000, "255.0.255.255", "ff00ffff"}, // with holes
		{FamilyIPv6, 128, "0", "00000000"},
	} {
		require.Equal(t, tt.text, tt.mask.Text(tt.family))
		wire := tt.mask.wire(tt.family)
		require.Equal(t, tt.wire, hex.EncodeToString(wire[:]), tt.text)
		require.Equal(t, tt.mask, netmask(wire, tt.family), tt.text)
	}
}
