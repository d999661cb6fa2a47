package ipvsnl

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDestinationsHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	for _, tt := range []struct {
		name        string
		destination Destination
		want        string
	}{
		{
			name: "masquerade over IPv4",
			destination: Destination{DestinationKey: destKey("10.244.1.1:8080"), Weight: 5,
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
			destination: Destination{DestinationKey: destKey("[2001:db8::2]:80"), Weight: 1,
				Forward: ForwardTunnel,
				Tunnel:  Tunnel{Type: TunnelGUE, Port: 6080, Flags: TunnelChecksum}},
			want: `
				6000 0280
				0600 0b00 0a00 0000                   // AF_INET6
				1400 0100 20010db8000000000000000000000002
				0600 0200 0050 0000
				0800 0300 02000000                    // IP_VS_CONN_F_TUNNEL
				0800 0400 01000000
				0500 0d00 01 000000                   // TUN_TYPE: IP_VS_CONN_F_TUNNEL_TYPE_GUE
				0600 0e00 17c0 0000                   // TUN_PORT, network order
				0600 0f00 0100 0000                   // TUN_FLAGS: IP_VS_TUNNEL_ENCAP_FLAG_CSUM
				0800 0500 00000000
				0800 0600 00000000
			`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.destination.Validate())
			require.Equal(t, unhex(t, tt.want), appendDestination(nil, tt.destination))
		})
	}
}

func TestADestinationKeyHasOnlyWhatNamesTheDestination(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	require.Equal(t, unhex(t, `
		2800 0280
		0600 0b00 0200 0000
		1400 0100 0af40101 000000000000000000000000
		0600 0200 1f90 0000
	`), appendDestinationKey(nil, destKey("10.244.1.1:8080")))
}

func TestAnyDestinationComesBackAsItWas(t *testing.T) {
	t.Parallel()
	r := random(t)
	for range 2000 {
		f := pick(r, FamilyIPv4, FamilyIPv6)
		want := ObservedDestination{Destination: randomDestination(r, f), ActiveConns: r.Uint32(),
			InactiveConns:   r.Uint32(),
			PersistentConns: r.Uint32(), Stats: randomStats(r)}
		require.NoError(t, want.Validate())
		got, err := decodeDestinationReply(appendObservedDestination(nil, want), f)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestDestinationsThatIPVSCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	with := func(change func(d *Destination)) Destination {
		d := dest("10.244.1.1:8080")
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
		{"a tunnel that is none", with(func(d *Destination) { d.Tunnel.Type = TunnelGRE }),
			"tunnel: invalid: the forwarding method is masquerade"},
		{"an unknown tunnel", with(func(d *Destination) {
			d.Forward, d.Tunnel.Type = ForwardTunnel, 3
		}), "tunnel type: invalid"},
		{"gue without port", with(func(d *Destination) {
			d.Forward, d.Tunnel.Type = ForwardTunnel, TunnelGUE
		}),
			"tunnel port: invalid: gue needs one"},
		{"ipip with port", with(func(d *Destination) {
			d.Forward, d.Tunnel.Port = ForwardTunnel, 1
		}),
			"tunnel port: invalid: ipip has none"},
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
	d := dest("[2001:db8::2]:80")
	require.ErrorIs(t, d.validIn(web), ErrInvalid)
	require.ErrorContains(t, d.validIn(web), "IPv6, but the service is IPv4; that takes a tunnel")
	require.NoError(t, d.validIn(dns6))
	d.Forward = ForwardTunnel
	require.NoError(t, d.validIn(web))
}

func TestDestinationKeys(t *testing.T) {
	t.Parallel()
	sorted := []DestinationKey{
		destKey("9.0.0.1:80"), destKey("10.0.0.1:80"), destKey("10.0.0.1:443"),
		destKey("[2001:db8::1]:80"),
	}
	require.Equal(t, "10.0.0.1:443", sorted[2].String())
	shuffled := slices.Clone(sorted)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, DestinationKey.Compare)
	require.Equal(t, sorted, shuffled)
	require.Equal(t, Family(0), DestinationKey{}.Family())
}

func TestADestinationWithoutFamilyIsOfItsServices(t *testing.T) {
	t.Parallel()
	b, mark := beginNest(nil, cmdAttrDestination)
	b = appendAddr(b, dstAttrAddr, destKey("10.0.0.1:80").Addr)
	b = appendPort(b, dstAttrPort, 80)
	for _, typ := range []uint16{dstAttrForward, dstAttrWeight, dstAttrUpper, dstAttrLower} {
		b = appendU32(b, typ, 0)
	}
	b = endNest(b, mark)
	d, err := decodeDestinationReply(b, FamilyIPv4)
	require.NoError(t, err)
	require.Equal(t, destKey("10.0.0.1:80"), d.DestinationKey)
}

func TestDestinationsThatTheKernelWouldNotSendAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "a reply without destination"},
		{"a destination without settings", appendDestinationKey(nil, destKey("10.0.0.1:80")),
			"not all attributes are there"},
		{"a destination without port", func() []byte {
			b, mark := beginNest(nil, cmdAttrDestination)
			return endNest(appendAddr(b, dstAttrAddr, web.Addr), mark)
		}(), "no address or no port"},
		{"a destination of an unknown family", func() []byte {
			b, mark := beginNest(nil, cmdAttrDestination)
			b = appendDestinationAttrs(b, dest("10.0.0.1:80"))
			return endNest(appendU16(b, dstAttrAddrFamily, 1), mark)
		}(), "an address of family 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeDestinationReply(tt.data, FamilyIPv4)
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func FuzzDecodeDestination(f *testing.F) {
	f.Add(appendDestinationAttrs(nil, dest("10.244.1.1:8080")), true)
	f.Add(appendDestinationAttrs(nil, dest("[2001:db8::2]:80")), false)
	f.Add(
		appendObservedDestination(nil,
			ObservedDestination{Destination: dest("10.244.1.1:8080")})[attrHeaderLen:], true)
	f.Fuzz(func(t *testing.T, data []byte, ipv4 bool) {
		family := FamilyIPv6
		if ipv4 {
			family = FamilyIPv4
		}
		w, err := decodeDestination(data)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		d, err := w.observed(family)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		back, err := decodeDestinationReply(appendObservedDestination(nil, d), family)
		require.NoError(t, err)
		require.Equal(t, d.Destination, back.Destination)
		require.Equal(t, d.ActiveConns, back.ActiveConns)
	})
}
