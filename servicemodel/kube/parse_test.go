package kube

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestParseAddr(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"plain IPv4", "10.0.0.1", "10.0.0.1"},
		{"leading zeros are decimal, not octal", "192.168.099.022", "192.168.99.22"},
		{"any number of leading zeros", "0000010.00.000.01", "10.0.0.1"},
		{"all zeros", "000.000.000.000", "0.0.0.0"},
		{"plain IPv6", "2001:db8::1", "2001:db8::1"},
		{"IPv6 in capitals", "2001:DB8::A", "2001:db8::a"},
		{"IPv6 with leading zeros within four digits", "2001:0db8::0001", "2001:db8::1"},
		{"IPv6 with more leading zeros than four digits hold", "2001:00000db8::00001",
			"2001:db8::1"},
		{"IPv4 written as IPv6", "::ffff:10.0.0.1", "10.0.0.1"},
		{"IPv4 written as IPv6, with leading zeros", "::ffff:010.000.000.001", "10.0.0.1"},
		{"IPv4 written as IPv6 in hexadecimal", "::ffff:a00:1", "10.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseAddr(tt.in)
			require.NoError(t, err)
			require.Equal(t, netip.MustParseAddr(tt.want), got)
		})
	}
}

func TestParsePrefix(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"IPv4", "10.0.0.0/8", "10.0.0.0/8"},
		{"host bits are masked", "10.1.2.3/8", "10.0.0.0/8"},
		{"leading zeros in the address", "010.000.001.000/24", "10.0.1.0/24"},
		{"leading zeros in the length", "10.0.0.0/08", "10.0.0.0/8"},
		{"everything", "0.0.0.0/0", "0.0.0.0/0"},
		{"IPv6", "2001:db8::1/32", "2001:db8::/32"},
		{"IPv4 written as IPv6", "::ffff:10.0.0.0/104", "10.0.0.0/8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parsePrefix(tt.in)
			require.NoError(t, err)
			require.Equal(t, netip.MustParsePrefix(tt.want), got)
		})
	}

	for _, in := range []string{
		"", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0.0/+8",
		"10.0.0.0/8/8", "x/8", "fe80::%eth0/64",
		"::ffff:10.0.0.0/8", "10.0.0.0/256",
	} {
		t.Run("refuses "+in, func(t *testing.T) {
			t.Parallel()
			_, err := parsePrefix(in)
			require.ErrorIs(t, err, errPrefix)
		})
	}
}

// FuzzParseAddr compares parseAddr with the API server's parser for lenient fields.
func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1", "192.168.099.022", "2001:db8::1", "::ffff:010.0.0.1", "0:0:0:0:0:0:0:00",
		"1.2.3.4.5", "fe80::1%0", "00", ":::", "0::0.0.0.0",
		"", "localhost", "10.0.1", "10.0.0.256", "10.0.0.0256", "0x0a.0.0.1", " 10.0.0.1",
		"10.0.0.1:80", "fe80::1%eth0", "[::1]", "2001:12345::1", "10.0.0.0/8", "+1.0.0.1",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddr(s)
		accepted := len(validation.IsValidIPForLegacyField(field.NewPath("ip"), s, false, nil)) == 0
		require.Equal(t, accepted, err == nil, "%q", s)
		if err != nil {
			return
		}
		require.False(t, a.Is4In6())
		again, err := parseAddr(a.String())
		require.NoError(t, err)
		require.Equal(t, a, again)
		if strict, err := netip.ParseAddr(s); err == nil {
			require.Equal(t, strict.Unmap(), a, "the strict parser is right where it accepts")
		}
	})
}

// FuzzParsePrefix compares parsePrefix with the API server's parser for lenient fields.
func FuzzParsePrefix(f *testing.F) {
	for _, s := range []string{
		"10.0.0.0/8", "010.0.0.1/08", "2001:db8::1/32", "::ffff:10.0.0.0/104", "::/0", "1.1.1.1/33",
		"/", "1.1.1.1/+1",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePrefix(s)
		if err != nil {
			return
		}
		require.Empty(t, validation.IsValidCIDRForLegacyField(field.NewPath("cidr"), s, false, nil),
			"%q", s)
		require.Equal(t, p.Masked(), p)
		again, err := parsePrefix(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
