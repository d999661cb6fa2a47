package proxy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeaders(t *testing.T) {
	t.Parallel()
	parse := netip.MustParseAddrPort
	v4, v4to := parse("192.0.2.1:56324"), parse("10.96.0.10:443")
	v6, v6to := parse("[2001:db8::1]:258"), parse("[fd00::a]:80")
	const ip4, ip6 = "\xc0\x00\x02\x01\x0a\x60\x00\x0a\xdc\x04\x01\xbb",
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
			"\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0a\x01\x02\x00\x50"
	const begin = "\r\n\r\n\x00\r\nQUIT\n\x21"
	require.Equal(t, begin+"\x11\x00\x0c"+ip4, string(header(v4, v4to)))
	require.Equal(t, begin+"\x21\x00\x24"+ip6, string(header(v6, v6to)))
}
