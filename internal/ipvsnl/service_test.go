package ipvsnl

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestRequestsHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"TCP over IPv4", ServiceAttr(Wanted(Web)), `
			5400 0180                             // IPVS_CMD_ATTR_SERVICE
			0600 0100 0200 0000                   // AF: AF_INET
			0600 0200 0600 0000                   // PROTOCOL: IPPROTO_TCP
			1400 0300 0a600001 000000000000000000000000 // ADDR
			0600 0400 0050 0000                   // PORT, network order
			0700 0600 727200 00                   // SCHED_NAME
			0c00 0700 00000000 ffffffff           // FLAGS, and which of them
			0800 0800 00000000                    // TIMEOUT
			0800 0900 ffffffff                    // NETMASK, network order`},
		{"persistent UDP over IPv6", ServiceAttr(Service{ServiceKey: DNS6, Scheduler: "wlc",
			Flags: FlagPersistent | FlagOnePacket, Timeout: 5 * time.Minute,
			Netmask: PrefixNetmask(FamilyIPv6, 64)}), `
			5400 0180
			0600 0100 0a00 0000                   // AF_INET6
			0600 0200 1100 0000                   // IPPROTO_UDP
			1400 0300 20010db8000000000000000000000001
			0600 0400 0035 0000
			0800 0600 776c6300
			0c00 0700 05000000 ffffffff
			0800 0800 2c010000
			0800 0900 40000000                    // a prefix length, machine order`},
		{"a firewall mark with a persistence engine", ServiceAttr(Service{ServiceKey: Marks,
			Scheduler: "sh", Flags: FlagHashPort, Netmask: PrefixNetmask(FamilyIPv4, 24),
			PersistenceEngine: "sip"}), `
			4000 0180
			0600 0100 0200 0000
			0800 0500 07000000                    // FWMARK, instead of protocol and address
			0700 0600 736800 00
			0800 0b00 73697000                    // PE_NAME
			0c00 0700 10000000 ffffffff
			0800 0800 00000000
			0800 0900 ffffff00`},
		{"the key of a service", KeyAttr(Web), `3000 0180 0600 0100 0200 0000 0600 0200 0600 0000
			1400 0300 0a600001 000000000000000000000000 0600 0400 0050 0000`},
		{"a mark as a key", KeyAttr(Marks), "1400 0180 0600 0100 0200 0000 0800 0500 07000000"},
		{"masquerade over IPv4", DestinationAttr(Destination{
			DestinationKey: DestKey("10.244.1.1:8080"), Weight: 5, UpperThreshold: 100,
			LowerThreshold: 50}), `
			4800 0280                             // IPVS_CMD_ATTR_DEST
			0600 0b00 0200 0000                   // ADDR_FAMILY: AF_INET
			1400 0100 0af40101 000000000000000000000000 // ADDR
			0600 0200 1f90 0000                   // PORT, network order
			0800 0300 00000000                    // FWD_METHOD: IP_VS_CONN_F_MASQ
			0800 0400 05000000                    // WEIGHT
			0800 0500 64000000                    // U_THRESH
			0800 0600 32000000                    // L_THRESH`},
		{"a tunnel to IPv6", DestinationAttr(Destination{
			DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1, Forward: ForwardTunnel}), `
			4800 0280
			0600 0b00 0a00 0000                   // AF_INET6
			1400 0100 20010db8000000000000000000000002
			0600 0200 0050 0000
			0800 0300 02000000                    // IP_VS_CONN_F_TUNNEL
			0800 0400 01000000 0800 0500 00000000 0800 0600 00000000`},
		{"the key of a destination", DestinationKeyAttr(DestKey("10.244.1.1:8080")), `
			2800 0280 0600 0b00 0200 0000
			1400 0100 0af40101 000000000000000000000000 0600 0200 1f90 0000`},
	} {
		require.Equal(t, Unhex(t, tt.want), tt.got, tt.name)
	}
}

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
