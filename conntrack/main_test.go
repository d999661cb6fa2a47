package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kernlb/kernlb/internal/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func aps(list ...string) []netip.AddrPort {
	out := make([]netip.AddrPort, len(list))
	for i, s := range list {
		out[i] = ap(s)
	}
	return out
}

// flow returns a flow from a client to dst that endpoint answers, seeing the client as seen. An
// empty endpoint is dst itself, an empty seen the client.
func flow(p Protocol, client, dst, endpoint, seen string) Flow {
	if endpoint == "" {
		endpoint = dst
	}
	if seen == "" {
		seen = client
	}
	return Flow{
		Protocol: p,
		Original: Tuple{Src: ap(client), Dst: ap(dst)},
		Reply:    Tuple{Src: ap(endpoint), Dst: ap(seen)},
	}
}

// withPort returns a with the i-th port above 1023, and for more than there are with the next
// address.
func withPort(a netip.AddrPort, i int) netip.AddrPort {
	addr := a.Addr()
	for ; i >= 64000; i -= 64000 {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, uint16(1024+i))
}

// keys returns what identifies the flows, sorted.
func keys(flows []Flow) []string {
	out := make([]string, len(flows))
	for i, f := range flows {
		f.Timeout = 0
		out[i] = f.String()
	}
	slices.Sort(out)
	return out
}
