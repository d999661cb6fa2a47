package node

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
)

// The state of the table of connections: its size, and what was counted.
func TestTheTableOfConnections(t *testing.T) {
	t.Parallel()
	usage := func(count, most uint32, s conntrack.Stats) facts {
		return facts{usage: conntrack.Usage{Count: count, Max: most},
			grown: counted{conntrack: s}, over: time.Second}
	}

	for _, test := range []struct {
		facts facts
		want  string
	}{
		{usage(89, 100, conntrack.Stats{}), "[]"},
		{usage(100, 0, conntrack.Stats{Invalid: 7}), "[]"},
		{usage(95, 100, conntrack.Stats{}), "[warning: conntrack: the table of connections is " +
			"nearly full (95 of 100): new connections will fail]"},
		{usage(100, 100, conntrack.Stats{}), "[error: conntrack: the table of connections is " +
			"full (100 of 100): new connections fail]"},
		{usage(99, 100, conntrack.Stats{Dropped: 7}), "[error: conntrack: the table of " +
			"connections is full (99 of 100) and lost 7 packets in the last 1s: new connections " +
			"fail]"},
		{usage(1, 100, conntrack.Stats{EarlyDropped: 2}), "[warning: conntrack: the kernel " +
			"evicted 2 connections to make room in the table in the last 1s]"},
		{usage(1, 100, conntrack.Stats{ChainsTooLong: 1}), "[warning: conntrack: the kernel lost " +
			"1 packet in the last 1s because buckets of the table of connections were full]"},
	} {
		require.Equal(t, test.want, fmt.Sprint(test.facts.findings(nil)))
	}
}

// Each text that package hooks writes for a rule by the destination is read back, and its matches
// decide as the rule does.
func TestRulesByTheDestinationAreRead(t *testing.T) {
	t.Parallel()
	targets := []target{
		{servicemodel.TCP, netip.MustParseAddrPort("10.0.0.1:80")},
		{servicemodel.UDP, netip.MustParseAddrPort("10.0.0.1:80")},
		{servicemodel.TCP, netip.MustParseAddrPort("10.0.1.1:8080")},
		{servicemodel.TCP, netip.MustParseAddrPort("[fd00::1]:80")},
	}

	// Each condition with the targets that it matches.
	addresses := map[string]string{"": "1111", "ip daddr 10.0.0.1 ": "1100",
		"ip daddr 10.0.0.0/16 ": "1110", "ip6 daddr fd00::/64 ": "0001"}
	ports := map[string]string{"": "1111", "tcp dport 80 ": "1001", "udp dport 80 ": "0100",
		"tcp dport 8000-9000 ": "0010", "meta l4proto tcp ": "1011", "ct state new ": "1111"}
	verdicts := []string{"drop", "counter drop", "reject", "-j DROP",
		"reject with icmp type port-unreachable"}
	for address, a := range addresses {
		for port, p := range ports {
			for _, verdict := range verdicts {
				text := address + port + verdict
				m, known := parseRule(text)
				require.True(t, known, text)
				for i, at := range targets {
					require.Equal(t, a[i] == '1' && p[i] == '1', m.match(at), "%s: %v", text, at)
				}
			}

			m, known := parseRule(address + port + "accept")
			require.False(t, known, "%v", m)
			_, known = parseRule("iifname \"eth0\" " + address + port + "drop")
			require.False(t, known)
		}
	}
}

// Chains are judged for the families and the hooks that endpoints meet.
func TestChainsConcernEndpoints(t *testing.T) {
	t.Parallel()
	here := netip.MustParseAddr("192.0.2.10")
	drops := func(family string, hook hooks.Hook) hooks.Chain {
		return hooks.Chain{Family: family, Table: "fw", Name: "c", Type: "filter", Hook: hook,
			DropsByDefault: true}
	}

	for _, test := range []struct {
		chain    hooks.Chain
		endpoint string
		found    bool
	}{
		{drops("ip", hooks.Forward), "10.244.1.2", true},
		{drops("inet", hooks.Prerouting), "10.244.1.2", true},
		{drops("ip6", hooks.Forward), "10.244.1.2", false},
		{drops("ip6", hooks.Postrouting), "fd00::1", true},
		{drops("ip", hooks.Input), "10.244.1.2", false},
		{drops("ip", hooks.Input), here.String(), true},
		{drops("ip", hooks.Forward), here.String(), false},
		{drops("ip", hooks.Output), "10.244.1.2", false},
	} {
		f := facts{addrs: servicemodel.Locality{here}, chains: []hooks.Chain{test.chain},
			forwards: map[servicemodel.Family]bool{servicemodel.IPv4: true,
				servicemodel.IPv6: true}}
		got := f.findings(tableOf(t, servicemodel.Node{}, test.endpoint))
		require.Equal(t, test.found, len(got) == 1, "%v: %s", test.chain, test.endpoint)
	}
}
