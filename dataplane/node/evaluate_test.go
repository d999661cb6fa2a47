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

// The state of the conntrack table: its size and counters.
func TestTheTableOfConnections(t *testing.T) {
	t.Parallel()
	usage := func(count, most uint32, s conntrack.Stats) facts {
		return facts{usage: conntrack.Usage{Count: count, Max: most},
			grown: counted{s.Dropped, s.EarlyDropped, s.InsertFailed, s.ChainsTooLong},
			over:  time.Second, calm: [counters]time.Duration{evictions: time.Minute}}
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
			"evicted 2 connections to make room in the table in the last 1s, none in the last " +
			"1m0s]"},
		{usage(1, 100, conntrack.Stats{Dropped: 9, InsertFailed: 2, EarlyDropped: 2}), "[" +
			"warning: conntrack: the table of connections was full and lost 7 packets in the " +
			"last 1s; now it holds 1 of 100 warning: conntrack: the " +
			"kernel evicted 2 connections to make room in the table in the last 1s, none in the " +
			"last 1m0s warning: masquerade-ports: the " +
			"kernel lost 2 packets in the last 1s because another connection had the same " +
			"addresses and ports: the ports of masquerade to an endpoint are exhausted, or a " +
			"client sent two packets at once]"},
		{usage(1, 100, conntrack.Stats{ChainsTooLong: 1}), "[warning: conntrack: the kernel lost " +
			"1 packet in the last 1s because buckets of the table of connections were full]"},
	} {
		require.Equal(t, test.want, fmt.Sprint(test.facts.findings(nil)))
	}
}

// A loss is reported for at least five and at most ten minutes, whatever the interval of reports.
func TestALossStaysVisible(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{time.Second, 17 * time.Second, 4 * time.Minute} {
		c, begun := NewChecker(nil), time.Now()
		ask := func(at time.Duration) (f facts) {
			if at >= window {
				f.grown[drops] = 55
			}
			c.compare(&f, begun.Add(at))
			return f
		}

		shown := time.Duration(-1)
		for at := time.Duration(0); at < 4*window; at += every {
			f := ask(at)
			switch {
			case f.grown[drops] == 0 && at >= window && shown < 0, f.over > window:
				t.Fatalf("every %v: nothing after %v, compared with %v ago", every, at, f.over)
			case f.grown[drops] > 0:
				shown = at - window
				require.InDelta(t, shown, f.calm[drops], float64(every))
			}
		}

		require.GreaterOrEqual(t, shown+every, window/2, every)
		require.LessOrEqual(t, shown, window, every)
	}
}

// Each text that package hooks writes for a rule by the destination is read back, and the parsed
// matches decide like the rule.
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

// Chains are judged for the families of endpoints, and for the hooks that packets to endpoints
// pass.
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

// The finding about a rule that drops names the first endpoint and the number of further endpoints,
// each once.
func TestEndpointsThatARuleDrops(t *testing.T) {
	t.Parallel()
	chain := hooks.Chain{Family: "ip", Hook: hooks.Forward}
	for want, endpoints := range map[string][]string{
		"":                                 {"[fd00::1]:8080"},
		"10.0.0.1:8080":                    {"10.0.0.1:8080", "10.0.0.1:8080", "[fd00::1]:8080"},
		"10.0.0.1 (any port)":              {"10.0.0.1:0"},
		"10.0.0.1:8080 and 1 other":        {"10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.2:8080"},
		"10.0.0.1 (any port) and 2 others": {"10.0.0.1:0", "10.0.0.2:80", "10.0.0.3:80"},
	} {
		var targets []target
		for _, e := range endpoints {
			targets = append(targets, target{servicemodel.TCP, netip.MustParseAddrPort(e)})
		}
		rule := hooks.Rule{Text: "meta l4proto tcp drop"}
		require.Equal(t, want, dropped(rule, chain, targets))
	}
}
