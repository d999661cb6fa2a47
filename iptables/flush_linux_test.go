package iptables

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// othersRules are another program's rules, in the chains that we share.
const othersRules = `*nat
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A POSTROUTING -s 10.99.0.0/16 -j MASQUERADE
-A CNI-HOSTPORT -p tcp -m tcp --dport 9 -j RETURN
COMMIT
*filter
-A INPUT -p tcp -m tcp --dport 9 -j DROP
-A FORWARD -p tcp -m tcp --dport 9 -j DROP
-A OUTPUT -p tcp -m tcp --dport 9 -j DROP
COMMIT
`

// flushes are commands of other programs that remove our rules.
var flushes = []struct {
	name    string
	command string
	// all says that services are lost and must be written anew.
	all bool
}{
	{"filter is flushed", "iptables -F", false},
	{"nat is flushed", "iptables -t nat -F", true},
	{"nat is flushed and its chains are deleted", "iptables -t nat -F; iptables -t nat -X",
		true},
	{"filter of IPv6 is flushed", "ip6tables -F; ip6tables -X", false},
	{"a table is deleted", "nft delete table ip nat", true},
	{"everything is deleted", "nft flush ruleset", true},
	{"one base chain is flushed", "iptables -t nat -F PREROUTING", false},
}

// The next apply notices any flush by itself, and restores exactly the missing rules. Connections
// survive.
func TestAFlushIsRepaired(t *testing.T) {
	t.Parallel()
	for _, flush := range flushes {
		t.Run(flush.name, func(t *testing.T) {
			t.Parallel()
			c, b := clusterOf(t)
			runTool(t, c.Node.NS, othersRules, "iptables-restore")
			e := dataplane.New(b, nil)
			s := podService(c, 3, nil)
			first := applied(t, e, s)
			before := [2]string{save(t, c.Node.NS, nft.IPv4), save(t, c.Node.NS, nft.IPv6)}
			conns := ok(netnstest.OpenConns(t.Context(), c.Outside[0],
				netip.MustParseAddrPort("10.96.0.10:80"), 20))(t)
			defer conns.Close()

			for command := range strings.SplitSeq(flush.command, "; ") {
				nstest.Run(t, c.Node.NS, command)
			}
			// Another program puts a rule where ours were.
			runTool(t, c.Node.NS, "", "iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp",
				"--dport", "7", "-j", "RETURN")
			r := applied(t, e, s)
			require.True(t, r.Observed)
			if !flush.all {
				require.NotEmpty(t, r.Drift)
				require.Empty(t, r.Changes.Frontends, "the services are still there")
				require.Empty(t, r.Changes.Pools, "the services are still there")
				require.Less(t, r.Messages, first.Messages/2, "rule by rule")
			}
			for i := range nft.Families {
				require.Equal(t, oursOf(before[i]), oursOf(save(t, c.Node.NS, nft.Families[i])))
			}
			requireFirst(t, save(t, c.Node.NS, nft.IPv4))
			require.Zero(t, conns.Ping(5*time.Second).Lost())
			for _, to := range []string{"10.96.0.10:80", "192.0.2.10:30080", "[fd00:10:96::a]:80"} {
				require.Equal(t, netnstest.Answered, dial(t, c.Outside[1], to).Kind, to)
			}
		})
	}
}

// oursOf returns, from the output of iptables-save, the rules in our chains and the jumps to them,
// by table.
func oursOf(saved string) [len(kinds)]string {
	var l [len(kinds)]string
	for _, t := range kinds {
		for line := range strings.Lines(savedRules(saved, t)) {
			if strings.Contains(line, "KUBE-") {
				l[t] += line
			}
		}
	}
	return l
}

// requireFirst requires that our jumps stand before the rules of other programs.
func requireFirst(t *testing.T, saved string) {
	t.Helper()
	for _, chain := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		for _, table := range kinds {
			theirs := ""
			for line := range strings.Lines(savedRules(saved, table)) {
				if !strings.HasPrefix(line, "-A "+chain+" ") {
					continue
				}
				if !strings.Contains(line, "-j KUBE-") {
					theirs = line
				} else {
					require.Empty(t, theirs, "before %s", line)
				}
			}
		}
	}
}
