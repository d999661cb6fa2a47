package ipvsnl

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestServiceKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "TCP 10.96.0.1:80", Web.String())
	require.Equal(t, "UDP [2001:db8::1]:53", DNS6.String())
	require.Equal(t, "FWM 7 IPv4", Marks.String())
	require.Equal(t, Web, AddressService(TCP, netip.MustParseAddrPort("[::ffff:10.96.0.1]:80")))

	sorted := []ServiceKey{
		AddressService(TCP, netip.MustParseAddrPort("9.255.0.1:80")),
		Web,
		AddressService(UDP, netip.MustParseAddrPort("10.96.0.1:80")),
		AddressService(TCP, netip.MustParseAddrPort("10.96.0.1:443")),
		DNS6,
		MarkService(FamilyIPv4, 7),
		MarkService(FamilyIPv6, 7),
		MarkService(FamilyIPv4, 8),
	}
	shuffled := slices.Clone(sorted)
	Random(t).Shuffle(len(shuffled), func(i, j int) {
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	slices.SortFunc(shuffled, ServiceKey.Compare)
	require.Equal(t, sorted, shuffled)
}

// KeyAttr encodes k as in a request about an existing object.
func KeyAttr(k ServiceKey) []byte {
	return Attrs(func(b *rawnl.Batch) { putServiceKey(b, k) })
}

// ServiceAttr encodes s as in a request, with more attributes.
func ServiceAttr(s Service, more ...func(b *rawnl.Batch)) []byte {
	return Inside(CmdAttrService, func(b *rawnl.Batch) {
		PutService(b, s)
		for _, put := range more {
			put(b)
		}
	})
}

func TestWhatTheKernelWouldNotSendIsRefused(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	service := func(data []byte) error { _, err := parseServiceReply(data); return err }
	destination := func(data []byte) error {
		_, err := parseDestinationReply(data, FamilyIPv4)
		return err
	}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{service(nil), "neither a mark nor"},
		{service(Unhex(t, "0400 0180")), "neither a mark nor"},
		{service(KeyAttr(Web)), "service TCP 10.96.0.1:80: not all attributes"},
		{service(Unhex(t, "2800 0180 0600 0100 0200 0000 0600 0200 0600 0000"+
			"0600 0300 0a00 0000 0600 0400 0050 0000 0400 ff00")),
			"an address of IPv4 has 2 bytes"},
		{service(Inside(CmdAttrService, func(b *rawnl.Batch) { b.Raw([]byte{9, 0, 1, 0}) })),
			"claims 9 bytes"},
		{destination(nil), "no address or no port"},
		{destination(DestinationKeyAttr(DestKey("10.0.0.1:80"))), "not all attributes are there"},
		{destination(Inside(CmdAttrDestination, func(b *rawnl.Batch) {
			putAddr(b, DestAttrAddr, Web.Addr)
		})), "no address or no port"},
		{destination(DestinationAttr(Dest("10.0.0.1:80"), func(b *rawnl.Batch) {
			b.NativeU16(DestAttrFamily, 1)
		})), "an address of family 1"},
	} {
		require.ErrorIs(t, tt.err, rawnl.ErrMalformed)
		require.ErrorContains(t, tt.err, tt.want)
	}
}

func TestUnknownAttributesOfAServiceAreIgnored(t *testing.T) {
	t.Parallel()
	want := Wanted(Web)
	want.Flags |= FlagHashed
	data := ServiceAttr(want, func(b *rawnl.Batch) { b.NativeU64(99, 1) })
	got := ok(parseServiceReply(append(data, Attrs(func(b *rawnl.Batch) { b.U32(77, 1) })...)))(t)
	require.Equal(t, ObservedService{Service: Wanted(Web)}, got)
}

// DestinationKeyAttr encodes k as in a request IPVS_CMD_DEL_DEST.
func DestinationKeyAttr(k DestinationKey) []byte {
	return Inside(CmdAttrDestination, func(b *rawnl.Batch) { putDestinationKey(b, k) })
}

// DestinationAttr encodes d as in a request, with more attributes.
func DestinationAttr(d Destination, more ...func(b *rawnl.Batch)) []byte {
	return Inside(CmdAttrDestination, func(b *rawnl.Batch) {
		PutDestination(b, d)
		for _, put := range more {
			put(b)
		}
	})
}

func TestADestinationWithoutFamilyIsOfItsServices(t *testing.T) {
	t.Parallel()
	d := ok(parseDestinationReply(Inside(CmdAttrDestination, func(b *rawnl.Batch) {
		putAddr(b, DestAttrAddr, DestKey("10.0.0.1:80").Addr)
		b.U16(DestAttrPort, 80)
		for _, typ := range []uint16{DestAttrForward, DestAttrWeight, DestAttrUpper,
			DestAttrLower} {
			b.NativeU32(typ, 0)
		}
	}), FamilyIPv4))(t)
	require.Equal(t, DestKey("10.0.0.1:80"), d.DestinationKey)
}

func TestNetmasks(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for name, tt := range map[string]struct {
		family Family
		mask   Netmask
		text   string
		wire   string
	}{
		"a whole IPv4 address": {FamilyIPv4, 0, "255.255.255.255", "ffffffff"},
		"a whole IPv6 address": {FamilyIPv6, 0, "128", "80000000"},
		"a class C network": {FamilyIPv4, PrefixNetmask(FamilyIPv4, 24), "255.255.255.0",
			"ffffff00"},
		"all IPv4 clients as one": {FamilyIPv4, PrefixNetmask(FamilyIPv4, 0), "0.0.0.0",
			"00000000"},
		"an IPv6 prefix":           {FamilyIPv6, PrefixNetmask(FamilyIPv6, 64), "64", "40000000"},
		"the shortest IPv6 prefix": {FamilyIPv6, PrefixNetmask(FamilyIPv6, 1), "1", "01000000"},
		"an IPv4 mask with holes":  {FamilyIPv4, 0x00ff0000, "255.0.255.255", "ff00ffff"},
		"no IPv6 mask at all":      {FamilyIPv6, 128, "0", "00000000"},
	} {
		require.Equal(t, tt.text, tt.mask.Text(tt.family), name)
		wire := tt.mask.wire(tt.family)
		require.Equal(t, Unhex(t, tt.wire), wire[:], name)
		require.Equal(t, tt.mask, netmask(wire, tt.family), name)
	}
}
