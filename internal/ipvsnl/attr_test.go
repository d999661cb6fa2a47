package ipvsnl

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAttributesHaveTheKernelsLayout(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"one byte, padded", appendU8(nil, 13, 1), "0500 0d00 01 000000"},
		{"two bytes in machine order, padded", appendU16(nil, 1, 0x0102), "0600 0100 0201 0000"},
		{"a port in network order", appendPort(nil, 4, 0x1f90), "0600 0400 1f90 0000"},
		{"four bytes in machine order", appendU32(nil, 8, 300), "0800 0800 2c010000"},
		{"eight bytes in machine order", appendU64(nil, 4, 0x0102030405060708),
			"0c00 0400 0807060504030201"},
		{"a string with its NUL, padded", appendText(nil, 6, "rr"), "0700 0600 727200 00"},
		{"a string that needs no padding", appendText(nil, 6, "wlc"), "0800 0600 776c6300"},
		{"an empty string", appendText(nil, 6, ""), "0500 0600 00 000000"},
		{"an IPv4 address in 16 bytes", appendAddr(nil, 3, netip.MustParseAddr("10.96.0.1")),
			"1400 0300 0a600001 00000000 00000000 00000000"},
		{"an IPv6 address", appendAddr(nil, 3, netip.MustParseAddr("2001:db8::1")),
			"1400 0300 20010db8 00000000 00000000 00000001"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, unhex(t, tt.want), tt.got)
		})
	}
}

func TestAnAttributeOfAttributesHasTheirLength(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	b, mark := beginNest([]byte{0xff, 0xff, 0xff, 0xff}, 1)
	b = endNest(appendU8(b, 2, 3), mark)
	require.Equal(t, unhex(t, "ffffffff 0c00 0180 0500 0200 03 000000"), b)
}

func TestWalkingOverAttributesStopsAtTheFirstMistake(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	for _, tt := range []struct {
		name, data, want string
		read             func(a *attrs)
	}{
		{"a header that is cut off", "0800", "2 bytes after the last attribute", nil},
		{"a length below that of the header", "0300 0100", "claims 3 bytes, 4 are there", nil},
		{"a length beyond the end", "0c00 0100 00000000", "claims 12 bytes, 8 are there", nil},
		{"a number that is too short", "0600 0100 0000 0000", "attribute 1 has 2 bytes, want 4",
			func(a *attrs) { a.u32() }},
		{"a number that is too long", "0800 0200 00000000", "attribute 2 has 4 bytes, want 2",
			func(a *attrs) { a.port() }},
		{"a counter of neither 4 nor 8 bytes", "0600 0100 0000 0000", "has 2 bytes, want 8",
			func(a *attrs) { a.count() }},
		{"a string without NUL", "0600 0600 7272 0000", "is not a terminated string",
			func(a *attrs) { a.text(15) }},
		{"a string of no bytes", "0400 0600", "is not a terminated string", func(a *attrs) {
			a.text(15)
		}},
		{"a string that is too long", "0800 0600 77777700", "string of 3 bytes, want at most 2",
			func(a *attrs) { a.text(2) }},
		{"an address that is too long", "1800 0300 " + "0000000000000000000000000000000000000000",
			"has 20 bytes, want at most 16", func(a *attrs) { a.addr() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := attrs{what: "thing", rest: unhex(t, tt.data)}
			for a.next() {
				tt.read(&a)
			}
			require.ErrorIs(t, a.err, ErrMalformed)
			require.ErrorContains(t, a.err, "thing: ")
			require.ErrorContains(t, a.err, tt.want)
			require.False(t, a.next())
		})
	}
}

func TestTheFirstMistakeInAttributesIsKept(t *testing.T) {
	t.Parallel()
	a := attrs{what: "thing", rest: appendU8(appendU8(nil, 1, 0), 2, 0)}
	require.True(t, a.next())
	a.u32()
	first := a.err
	a.text(3)
	require.Equal(t, first, a.err)
}

func TestAttributeFlagsAndMissingPaddingAreTolerated(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	a := attrs{what: "thing", rest: unhex(t, "0800 01c0 2a000000 0500 0200 07")}
	require.True(t, a.next())
	require.Equal(t, uint16(1), a.typ)
	require.Equal(t, uint32(42), a.u32())
	require.True(t, a.next())
	require.Equal(t, uint8(7), a.u8())
	require.False(t, a.next())
	require.NoError(t, a.err)
}

func TestAnAddressNeedsTheBytesOfItsFamily(t *testing.T) {
	t.Parallel()
	four := wireAddr{bytes: [16]byte{10, 0, 0, 1}, len: 4}
	for _, tt := range []struct {
		name string
		addr wireAddr
		in   Family
		want string
		fail string
	}{
		{name: "four bytes are an IPv4 address", addr: four, in: FamilyIPv4, want: "10.0.0.1"},
		{name: "of sixteen, IPv4 takes the first four",
			addr: wireAddr{bytes: [16]byte{10, 0, 0, 1, 9}, len: 16}, in: FamilyIPv4,
			want: "10.0.0.1"},
		{name: "three bytes are none", addr: wireAddr{len: 3}, in: FamilyIPv4, fail: "has 3 bytes"},
		{name: "no bytes are none", in: FamilyIPv4, fail: "has 0 bytes"},
		{name: "four bytes are no IPv6 address", addr: four, in: FamilyIPv6, fail: "has 4 bytes"},
		{name: "other families have none", addr: four, in: 7, fail: "an address of family 7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.addr.in(tt.in)
			if tt.fail != "" {
				require.ErrorIs(t, err, ErrMalformed)
				require.ErrorContains(t, err, tt.fail)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.String())
		})
	}
}

func TestASetOfAttributesIgnoresTypesItCannotHold(t *testing.T) {
	t.Parallel()
	s := attrSet(0).with(3).with(200)
	require.True(t, s.has(3))
	require.False(t, s.has(3, 4))
	require.Equal(t, attrSet(8), s)
}
