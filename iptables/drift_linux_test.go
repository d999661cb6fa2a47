package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// handDamage are edits of the rules by hand.
var handDamage = []struct {
	name, script string
	drift        string
	unseen       bool // as damage by Integrity, which only reports a foreign commit
}{
	{"a jump is gone", "*nat\n-D PREROUTING 1\nCOMMIT\n",
		"chain PREROUTING of table ip nat lacks 1", false},
	{"all jumps are gone", "*filter\n-F INPUT\n-F FORWARD\n-F OUTPUT\nCOMMIT\n",
		"chain FORWARD of table ip filter lacks 2 and has 0 surplus rules; missing: -m comment " +
			`--comment "kubernetes forwarding rules" -j KUBE-FORWARD`, false},
	{"a jump is there twice", "*nat\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n",
		"chain OUTPUT of table ip nat lacks 0 and has 1 surplus", false},
	{"a fixed chain is changed", "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n",
		"chain KUBE-MARK-MASQ of table ip nat lacks 1", false},
	{"a rule of somebody else is in a chain of ours",
		"*nat\n-I KUBE-NODEPORTS -m limit --limit 1/s -j ACCEPT\nCOMMIT\n",
		"chain KUBE-NODEPORTS of table ip nat lacks 0 and has 1 surplus rules; surplus: (a " +
			"rule that is not understood)", false},
	{"a chain of a service is emptied", "*nat\n-F KUBE-SVC-WEB\nCOMMIT\n", "lacks", false},
	{"a chain is gone", "*filter\n-D FORWARD 1\n-F KUBE-FORWARD\n-X KUBE-FORWARD\nCOMMIT\n",
		"chain KUBE-FORWARD of table ip filter is missing", false},
	{"a chain of ours is there that nobody wants",
		"*nat\n:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]\n-A KUBE-SVC-ABCDEFGHIJKLMNOP -j ACCEPT\n" +
			"COMMIT\n",
		"chain KUBE-SVC-ABCDEFGHIJKLMNOP of table ip nat does not belong", false},
	{"tables are flushed", "*nat\n-F\nCOMMIT\n*filter\n-F\nCOMMIT\n", "lacks", false},
	{"a rule of a service takes the place of another",
		"*nat\n-R KUBE-SVC-WEB 2 -j RETURN\nCOMMIT\n",
		"lacks 0 and has 1 surplus rules; surplus: -j RETURN", true},
	{"a rule of a fixed chain takes the place of another",
		"*filter\n-R KUBE-FORWARD 1 -j ACCEPT\nCOMMIT\n",
		"chain KUBE-FORWARD of table ip filter lacks 1 and has 1 surplus rules; not: -j ACCEPT",
		false},
	{"the last jump is gone, before a rule of somebody else",
		"*filter\n-A FORWARD -j ACCEPT\n-D FORWARD 2\nCOMMIT\n",
		"chain FORWARD of table ip filter lacks 1 and has 0 surplus rules; missing: -m conntrack",
		false},
}

// damage runs a script of iptables-restore. KUBE-SVC-WEB in it stands for the chain of webService.
func damage(t *testing.T, ns *netnstest.NS, script string) {
	t.Helper()
	name := names{defaultPrefix}.service(kindCluster, sm.PortName{Name: svcName("web"),
		Port: "http", Protocol: sm.TCP}, "")
	runTool(t, ns, strings.ReplaceAll(script, "KUBE-SVC-WEB", name), "iptables-restore",
		"--noflush")
}

func TestDamageIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	for _, d := range handDamage {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			e, b, ns := engineOf(t)
			s := webService()
			applied(t, e, s)
			before := oursOf(save(t, ns, nft.IPv4))

			damage(t, ns, d.script)
			if !d.unseen { // otherwise the engine must read, because another program committed
				require.Equal(t, backends.Broken, ok(b.Integrity(t.Context()))(t))
			}
			r := applied(t, e, s)
			if !strings.Contains(d.script, "KUBE-SVC-WEB") && d.name != "tables are flushed" {
				require.True(t, r.Changes.Empty(), "only what drifted: %s", r.Changes)
			}
			require.Contains(t, strings.Join(r.Drift, "\n"), d.drift)
			after := save(t, ns, nft.IPv4)
			require.Equal(t, before, oursOf(after))
			requireFirst(t, after)
			require.Empty(t, observation(t, b).Drift)
		})
	}
}

// The drift begins with the chain that another program deleted or emptied, not with chains that are
// as they were and only lost their meaning.
func TestDriftBeginsWithWhatIsAbsent(t *testing.T) {
	t.Parallel()
	for script, first := range map[string]string{
		"*nat\n-F\n-X\nCOMMIT\n":          "^chain KUBE-SETTINGS of table ip nat is missing$",
		"*nat\n-F KUBE-SVC-WEB\nCOMMIT\n": "^chain KUBE-SVC-[A-Z0-9]+ of table ip nat is empty$",
		"*filter\n-F FORWARD\n-F KUBE-FORWARD\n-X KUBE-FORWARD\nCOMMIT\n": "^chain " +
			"KUBE-FORWARD of table ip filter is missing$",
	} {
		e, _, ns := engineOf(t)
		applied(t, e, webService())
		damage(t, ns, script)
		require.Regexp(t, first, applied(t, e, webService()).Drift[0])
	}
}

// Rules of other programs stay in place, whatever happens to ours.
func TestRulesOfOthersStay(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	runTool(t, ns, `*filter
:FORWARD DROP [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:MINE - [0:0]
-A INPUT -j MINE
-A FORWARD -i lo -j ACCEPT
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A MINE -p icmp -j RETURN
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A CNI-HOSTPORT -s 10.0.0.0/8 -j KUBE-MARK-MASQ
COMMIT
`, "iptables-restore")
	before := save(t, ns, nft.IPv4)
	e := dataplane.New(b, nil)
	s := webService()
	node := testNode()
	node.LocalhostNodePorts = true
	applied(t, e, s.WithNode(node))
	saved := save(t, ns, nft.IPv4)
	require.Contains(t, saved, ":FORWARD DROP")
	require.Contains(t, saved, "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n")
	require.Contains(t, saved, "-A CNI-HOSTPORT -s 10.0.0.0/8 -j KUBE-MARK-MASQ\n")
	require.Less(t, strings.Index(saved, "-A FORWARD -m conntrack"),
		strings.Index(saved, "-A FORWARD -i lo"), "ours come first")
	require.Equal(t, "1", sysctlValue(t, b))

	applied(t, e, s)
	require.NotContains(t, save(t, ns, nft.IPv4), "block incoming localnet connections")
	require.Equal(t, "0", sysctlValue(t, b))

	cleanUp(t, e)

	// KUBE-MARK-MASQ was empty and a rule jumps to it. So the chain stays, with the rule that gives
	// it its effect.
	after := strings.Replace(save(t, ns, nft.IPv4),
		"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n", "", 1)
	require.Equal(t, withoutBuiltin(before), withoutBuiltin(after))
}

// withoutBuiltin drops the lines of base chains, which iptables prints even if the chains do not
// exist.
func withoutBuiltin(saved string) string {
	var l []string
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, ":") || strings.Contains(line, "DROP") {
			l = append(l, line)
		}
	}

	return strings.Join(l, "")
}

func sysctlValue(t *testing.T, b *backend) string {
	t.Helper()
	return ok((&sysctls.Files{In: b.kernel.ns.Do}).Read(t.Context(), sysctls.RouteLocalnet))(t)
}

func TestCleanupLeavesNothing(t *testing.T) {
	t.Parallel()
	e, _, ns := engineOf(t)
	applied(t, e, richState(t, 5))
	stats, err := e.Cleanup(t.Context())
	require.NoError(t, err)
	require.NotZero(t, stats.Messages)
	for _, f := range nft.Families {
		require.Empty(t, save(t, ns, f))
	}
	stats, err = e.Cleanup(t.Context())
	require.NoError(t, err, "nothing there is not an error")
	require.Zero(t, stats.Messages)
}

func TestTwoInstancesSideBySide(t *testing.T) {
	t.Parallel()
	one, ns, _ := opened(t, Config{})
	two := ok(openBackend(&Config{NetNS: ns.NetNS(), Prefix: "OTHER"}))(t)
	defer two.Close()
	a, b := dataplane.New(one, nil), dataplane.New(two, nil)
	applied(t, a, webService())
	applied(t, b, richState(t, 6))
	for _, e := range []*dataplane.Engine{a, b} {
		o := ok(e.Observe(t.Context()))(t)
		require.Empty(t, o.Drift)
		require.NotZero(t, o.Table.Len())
	}

	cleanUp(t, b)
	o := ok(a.Observe(t.Context()))(t)
	require.Empty(t, o.Drift)
	requireSameTable(t, resolve(t, nil, webService()).Arrange(o.Table), o.Table)
	require.NotContains(t, save(t, ns, nft.IPv4), "OTHER-")
}

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
	// all says that services are lost and must be written again.
	all bool
}{
	{"filter is flushed", "iptables -F", false},
	{"nat is flushed", "iptables -t nat -F", true},
	{"nat is flushed and its chains are deleted", "iptables -t nat -F; iptables -t nat -X", true},
	{"filter of IPv6 is flushed", "ip6tables -F; ip6tables -X", false},
	{"a table is deleted", "nft delete table ip nat", true},
	{"everything is deleted", "nft flush ruleset", true},
	{"one base chain is flushed", "iptables -t nat -F PREROUTING", false},
}

// The next apply notices any flush, and restores exactly the missing rules. Connections survive.
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
				require.Less(t, r.Stats.Messages, first.Stats.Messages/2, "rule by rule")
			}

			for i := range nft.Families {
				require.Equal(t, oursOf(before[i]), oursOf(save(t, c.Node.NS, nft.Families[i])))
			}
			requireFirst(t, save(t, c.Node.NS, nft.IPv4))
			require.Zero(t, conns.Ping(time.Minute).Lost())
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

// requireFirst requires that our jumps precede the rules of other programs.
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

// A new process notices and restores lost rules, whatever their kind.
func TestRandomDamageIsRepaired(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	s := richState(t, 8)
	e := dataplane.New(b, nil)
	applied(t, e, s)
	want := [2]string{save(t, ns, nft.IPv4), save(t, ns, nft.IPv6)}
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 12 {
		for i, f := range nft.Families {
			runTool(t, ns, vandalize(want[i], rng), toolName(f.Model)+"-restore", "--noflush")
		}
		other := ok(openBackend(&Config{NetNS: ns.NetNS()}))(t)
		r := applied(t, dataplane.New(other, nil), s)
		require.NotEmpty(t, r.Drift)
		require.NoError(t, other.Close())
		want = [2]string{save(t, ns, nft.IPv4), save(t, ns, nft.IPv6)}
		o := observation(t, b)
		require.Empty(t, o.Drift, "seed %d", seed)

		// a different endpoint may have the place of a lost slot
		requireSameTable(t, resolve(t, nil, s).Arrange(o.Table), o.Table)
	}
}

// vandalize returns commands that delete some rules, insert some and flush a chain.
func vandalize(saved string, rng *rand.Rand) string {
	var out strings.Builder
	for _, t := range kinds {
		fmt.Fprintf(&out, "*%s\n", t)
		count := map[string]int{}
		var chains []string
		for line := range strings.Lines(savedRules(saved, t)) {
			chain := strings.Fields(line)[1]
			if count[chain]++; count[chain] == 1 {
				chains = append(chains, chain)
			}
		}

		for _, chain := range chains {
			for n := count[chain]; n > 0; n-- { // from the end, so that the numbers stay valid
				switch r := rng.IntN(40); {
				case r == 0:
					fmt.Fprintf(&out, "-D %s %d\n", chain, n)
				case r == 1 && strings.HasPrefix(chain, "KUBE-"):
					fmt.Fprintf(&out, "-I %s %d -p tcp -m tcp --dport %d -j RETURN\n", chain, n,
						1+rng.IntN(1000))
				}
			}

			if rng.IntN(40) == 0 {
				fmt.Fprintf(&out, "-F %s\n", chain)
			}
		}

		out.WriteString("COMMIT\n")
	}

	return out.String()
}
