package ipvsnl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
