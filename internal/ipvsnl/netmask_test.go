package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestNetmasks(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name   string
		family Family
		mask   Netmask
		bits   int
		text   string
		wire   string
	}{
		{"the zero value is a whole IPv4 address", FamilyIPv4, Netmask{}, 32, "255.255.255.255",
			"ffffffff"},
		{"the zero value is a whole IPv6 address", FamilyIPv6, Netmask{}, 128, "128", "80000000"},
		{"a class C network", FamilyIPv4, Mask(FamilyIPv4, 24), 24, "255.255.255.0", "ffffff00"},
		{"all IPv4 clients as one", FamilyIPv4, Mask(FamilyIPv4, 0), 0, "0.0.0.0", "00000000"},
		{"an IPv6 prefix", FamilyIPv6, Mask(FamilyIPv6, 64), 64, "64", "40000000"},
		{"the shortest IPv6 prefix", FamilyIPv6, Mask(FamilyIPv6, 1), 1, "1", "01000000"},
		{"an IPv4 mask with holes", FamilyIPv4, Netmask{ignored: 0x00ff0000}, -1, "255.0.255.255",
			"ff00ffff"},
		{"no IPv6 mask at all", FamilyIPv6, Netmask{ignored: 128}, -1, "0", "00000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, ok := tt.mask.Bits(tt.family)
			require.Equal(t, tt.bits >= 0, ok)
			if ok {
				require.Equal(t, tt.bits, n)
			}
			require.Equal(t, tt.text, tt.mask.Text(tt.family))
			wire := Attrs(func(b *rawnl.Batch) { putNetmask(b, 9, tt.family, tt.mask) })
			require.Equal(t, Unhex(t, "0800 0900"+tt.wire), wire)
			back, err := wireNetmask(wire[4:]).in(tt.family)
			require.NoError(t, err)
			require.Equal(t, tt.mask, back)
		})
	}
}

func TestNetmasksThatDoNotExistAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		family Family
		bits   int
	}{{FamilyIPv4, -1}, {FamilyIPv4, 33}, {FamilyIPv6, 0}, {FamilyIPv6, 129}, {Family(1), 8}} {
		_, err := PrefixNetmask(tt.family, tt.bits)
		require.ErrorIs(t, err, ErrInvalid, "%v /%d", tt.family, tt.bits)
	}
	_, err := wireNetmask{0xff, 0xff, 0xff, 0xff}.in(FamilyIPv6)
	require.ErrorIs(t, err, rawnl.ErrMalformed)
}
