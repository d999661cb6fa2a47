package ipvsnl

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestDestinationsHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name        string
		destination Destination
		want        string
	}{
		{
			name: "masquerade over IPv4",
			destination: Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 5,
				UpperThreshold: 100, LowerThreshold: 50},
			want: `
				4800 0280                             // IPVS_CMD_ATTR_DEST
				0600 0b00 0200 0000                   // ADDR_FAMILY: AF_INET
				1400 0100 0af40101 000000000000000000000000 // ADDR
				0600 0200 1f90 0000                   // PORT, network order
				0800 0300 00000000                    // FWD_METHOD: IP_VS_CONN_F_MASQ
				0800 0400 05000000                    // WEIGHT
				0800 0500 64000000                    // U_THRESH
				0800 0600 32000000                    // L_THRESH
			`,
		},
		{
			name: "a tunnel to IPv6",
			destination: Destination{DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1,
				Forward: ForwardTunnel},
			want: `
				4800 0280
				0600 0b00 0a00 0000                   // AF_INET6
				1400 0100 20010db8000000000000000000000002
				0600 0200 0050 0000
				0800 0300 02000000                    // IP_VS_CONN_F_TUNNEL
				0800 0400 01000000
				0800 0500 00000000
				0800 0600 00000000
			`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.destination.Validate())
			require.Equal(t, Unhex(t, tt.want), DestinationAttr(tt.destination))
		})
	}
}

func TestADestinationKeyHasOnlyWhatNamesTheDestination(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	require.Equal(t, Unhex(t, `
		2800 0280
		0600 0b00 0200 0000
		1400 0100 0af40101 000000000000000000000000
		0600 0200 1f90 0000
	`), DestinationKeyAttr(DestKey("10.244.1.1:8080")))
}

func TestDestinationsThatIPVSCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	with := func(change func(d *Destination)) Destination {
		d := Dest("10.244.1.1:8080")
		change(&d)
		return d
	}
	for _, tt := range []struct {
		name        string
		destination Destination
		want        string
	}{
		{"nothing at all", Destination{}, "address: invalid: missing"},
		{"the unspecified address", with(func(d *Destination) {
			d.Addr = netip.IPv4Unspecified()
		}), "no unicast address"},
		{"a multicast address", with(func(d *Destination) {
			d.Addr = netip.MustParseAddr("ff02::1")
		}), "no unicast address"},
		{"a mapped address", with(func(d *Destination) {
			d.Addr = netip.MustParseAddr("::ffff:10.0.0.1")
		}), "is mapped"},
		{"a zone", with(func(d *Destination) {
			d.Addr = netip.MustParseAddr("fe80::1%eth0")
		}), "has a zone"},
		{"a weight beyond the kernel's int", with(func(d *Destination) {
			d.Weight = 1 << 31
		}), "weight: invalid: 2147483648"},
		{"an unknown forwarding method", with(func(d *Destination) {
			d.Forward = 5
		}), "forwarding method: invalid: there is no number 5"},
		{"an upper threshold beyond the kernel's int", with(func(d *Destination) {
			d.UpperThreshold = 1 << 31
		}),
			"upper threshold: invalid"},
		{"a lower threshold above the upper", with(func(d *Destination) { d.LowerThreshold = 1 }),
			"lower threshold: invalid: 1 is more than the upper one, 0"},
		{"a tunnel that is not IP in IP", with(func(d *Destination) {
			d.Forward, d.Tunnel.Type = ForwardTunnel, 1
		}), "tunnel: invalid: only IP in IP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.destination.Validate()
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestOnlyATunnelCrossesFamilies(t *testing.T) {
	t.Parallel()
	d := Dest("[2001:db8::2]:80")
	require.ErrorIs(t, d.validIn(Web), ErrInvalid)
	require.ErrorContains(t, d.validIn(Web), "IPv6, but the service is IPv4; that takes a tunnel")
	require.NoError(t, d.validIn(DNS6))
	d.Forward = ForwardTunnel
	require.NoError(t, d.validIn(Web))
}

func TestDestinationKeys(t *testing.T) {
	t.Parallel()
	sorted := []DestinationKey{
		DestKey("9.0.0.1:80"), DestKey("10.0.0.1:80"), DestKey("10.0.0.1:443"),
		DestKey("[2001:db8::1]:80"),
	}
	require.Equal(t, "10.0.0.1:443", sorted[2].String())
	shuffled := slices.Clone(sorted)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, DestinationKey.Compare)
	require.Equal(t, sorted, shuffled)
	require.Equal(t, Family(0), DestinationKey{}.Family())
}

// DestinationKeyAttr returns k as IPVS_CMD_DEL_DEST has it.
func DestinationKeyAttr(k DestinationKey) []byte {
	return Inside(CmdAttrDestination, func(b *rawnl.Batch) { putDestinationKey(b, k) })
}

// DestinationAttr returns d as a request has it, with more attributes.
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
	d, err := parseDestinationReply(Inside(CmdAttrDestination, func(b *rawnl.Batch) {
		putAddr(b, DestAttrAddr, DestKey("10.0.0.1:80").Addr)
		b.U16(DestAttrPort, 80)
		for _, typ := range []uint16{DestAttrForward, DestAttrWeight, DestAttrUpper,
			DestAttrLower} {
			b.NativeU32(typ, 0)
		}
	}), FamilyIPv4)
	require.NoError(t, err)
	require.Equal(t, DestKey("10.0.0.1:80"), d.DestinationKey)
}

func TestDestinationsThatTheKernelWouldNotSendAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "no address or no port"},
		{"a destination without settings", DestinationKeyAttr(DestKey("10.0.0.1:80")),
			"not all attributes are there"},
		{"a destination without port", Inside(CmdAttrDestination, func(b *rawnl.Batch) {
			putAddr(b, DestAttrAddr, Web.Addr)
		}), "no address or no port"},
		{"a destination of an unknown family",
			DestinationAttr(Dest("10.0.0.1:80"), func(b *rawnl.Batch) {
				b.NativeU16(DestAttrFamily, 1)
			}), "an address of family 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parseDestinationReply(tt.data, FamilyIPv4)
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			require.ErrorContains(t, err, tt.want)
		})
	}
}
