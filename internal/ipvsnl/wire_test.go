package ipvsnl

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestAddressesHaveTheKernelsLayout(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for addr, want := range map[string]string{
		"10.96.0.1":   "1400 0300 0a600001 00000000 00000000 00000000", // in 16 bytes, too
		"2001:db8::1": "1400 0300 20010db8 00000000 00000000 00000001",
	} {
		got := Attrs(func(b *rawnl.Batch) { putAddr(b, 3, netip.MustParseAddr(addr)) })
		require.Equal(t, Unhex(t, want), got, addr)
	}
}

func TestAttributesThatAreNotWhatTheyMustBeAreRefused(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name, data, want string
		read             func(it *rawnl.AttrIter)
	}{
		{"a string without NUL", "0600 0600 7272 0000", "attribute 6 is not a terminated string",
			func(it *rawnl.AttrIter) { text(it, 15) }},
		{"a string of no bytes", "0400 0600", "is not a terminated string",
			func(it *rawnl.AttrIter) { text(it, 15) }},
		{"a string that is too long", "0800 0600 77777700", "string of 3 bytes, want at most 2",
			func(it *rawnl.AttrIter) { text(it, 2) }},
		{"an address that is too long", "1800 0300 " + "0000000000000000000000000000000000000000",
			"has 20 bytes of data, want at most 16", func(it *rawnl.AttrIter) { addr(it) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			it := rawnl.Attrs(Unhex(t, tt.data))
			for it.Next() {
				tt.read(&it)
			}
			require.ErrorIs(t, it.Err(), rawnl.ErrMalformed)
			require.ErrorContains(t, it.Err(), tt.want)
		})
	}
}

func TestAnAddressNeedsTheBytesOfItsFamily(t *testing.T) {
	t.Parallel()
	four := wireAddr{10, 0, 0, 1}
	for _, tt := range []struct {
		name string
		addr wireAddr
		in   Family
		want string
		fail string
	}{
		{name: "four bytes are an IPv4 address", addr: four, in: FamilyIPv4, want: "10.0.0.1"},
		{name: "of sixteen, IPv4 takes the first four",
			addr: wireAddr{10, 0, 0, 1, 9, 15: 0}, in: FamilyIPv4,
			want: "10.0.0.1"},
		{name: "three bytes are none", addr: wireAddr{1, 2, 3}, in: FamilyIPv4,
			fail: "has 3 bytes"},
		{name: "no bytes are none", in: FamilyIPv4, fail: "has 0 bytes"},
		{name: "four bytes are no IPv6 address", addr: four, in: FamilyIPv6, fail: "has 4 bytes"},
		{name: "other families have none", addr: four, in: 7, fail: "an address of family 7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.addr.in(tt.in)
			if tt.fail != "" {
				require.ErrorIs(t, err, rawnl.ErrMalformed)
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
