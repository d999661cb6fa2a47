package cttest

//lint:file-ignore ST1001 helpers read like the tests that they serve, which import the package so

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// Rules loads rules for packets to a service. The namespace has only these rules, and a rule that
// keeps conntrack and NAT on.
func Rules(tb testing.TB, node *netnstest.NS, nat, filter string) {
	tb.Helper()
	nstest.NFT(tb, node, fmt.Sprintf(`
		flush ruleset
		table inet test {
			chain services {
				ip daddr 10.96.255.255 tcp dport 1 dnat ip to 192.0.2.1:1
				ip6 daddr fd00:10:96::ffff tcp dport 1 dnat ip6 to [2001:db8::1]:1
				%s
			}
			chain prerouting { type nat hook prerouting priority -100; jump services; }
			chain output { type nat hook output priority -100; jump services; }
			chain verdicts { %s; }
			chain forward { type filter hook forward priority filter; jump verdicts; }
			chain local { type filter hook output priority filter; jump verdicts; }
			chain postrouting {
				type nat hook postrouting priority srcnat
				meta mark 0x4000 masquerade
			}
		}`, nat, filter))
}

// DNAT is a rule that translates service to endpoint.
func DNAT(p Protocol, service, endpoint netip.AddrPort, extra string) string {
	family := "ip"
	if service.Addr().Is6() {
		family = "ip6"
	}
	return fmt.Sprintf("%s daddr %s %s dport %d %s dnat %s to %s\n", family, service.Addr(), p,
		service.Port(), extra, family, endpoint)
}
