package hooks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

const ruleset = `
table inet fw {
	chain more {
		tcp dport 23 goto last
		reject
	}
	chain last {
		counter drop comment "telnet is gone"
	}
	chain forgotten {
		drop
	}
	chain forward_all {
		type filter hook forward priority 5; policy drop;
		ct state established accept
		jump more
	}
	chain out {
		type filter hook postrouting priority 10;
		counter
	}
}
table ip kernlb {
	chain a {
		type nat hook prerouting priority -100;
		drop
	}
}
table arp x {
	chain input {
		type filter hook input priority 0;
	}
}
`

// in returns a new namespace with the ruleset.
func in(t *testing.T) *netnstest.NS {
	t.Helper()
	ns := nstest.New(t)
	nstest.NFT(t, ns, ruleset)
	return ns
}

// Read returns all base chains, with the rules that drop in them and in the chains to which they
// jump, and no other rules.
func TestReadTellsWhatDrops(t *testing.T) {
	t.Parallel()
	ns := in(t)
	got, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()},
		func(table string) bool { return table == "kernlb" })
	require.NoError(t, err)
	for i := range got {
		for j := range got[i].Drops {
			require.NotZero(t, got[i].Drops[j].Handle)
			got[i].Drops[j].Handle = 0
		}
	}

	require.Equal(t, []hooks.Chain{
		{Family: "inet", Table: "fw", Name: "forward_all", Type: "filter", Hook: hooks.Forward,
			Priority: 5, DropsByDefault: true, Drops: []hooks.Rule{
				{Chain: "more", Text: "reject"},
				{Chain: "last", Text: "counter drop", Comment: "telnet is gone"},
			}},
		{Family: "inet", Table: "fw", Name: "out", Type: "filter", Hook: hooks.Postrouting,
			Priority: 10},
		{Family: "ip", Table: "kernlb", Name: "a", Type: "nat", Hook: hooks.Prerouting,
			Priority: -100},
	}, got)
	got, err = hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
	require.NoError(t, err)
	require.Equal(t, "drop", got[2].Drops[0].Text, "nothing is skipped")
}

// likeNFT are rules. The first column is the family of the table, the second the rule.
const likeNFT = `
inet ip saddr 10.9.0.0/24 tcp dport 8080 drop
inet ip saddr 10.8.0.0/13 ip daddr != 10.0.0.1 udp sport 53 drop
inet ip6 saddr fd00::/8 ip6 daddr 2001:db8::1 drop
inet iifname "eth0" oifname != "veth*" tcp dport 8000-9000 drop
inet iif "lo" meta mark 0x00000001 drop
inet meta mark & 0x000000ff == 0x00000002 drop
inet meta mark set 0x00000007 drop
inet ct state established,related ct status dnat drop
inet ct mark 0x00004000 drop
inet meta nfproto ipv4 drop
inet meta l4proto tcp drop
inet ip protocol icmp drop
inet icmp type echo-request drop
inet icmpv6 type nd-neighbor-solicit drop
inet tcp flags syn / fin,syn,rst,ack drop
inet fib daddr type local drop
inet limit rate 5/second burst 5 packets log prefix "no: " drop
inet limit rate over 10/minute burst 7 packets counter drop
inet meta skuid 0 drop
inet ip saddr @blocked drop
inet ip saddr . tcp dport @pairs drop
inet tcp dport != 22 drop
inet tcp sport 1 tcp dport 2 drop
inet tcp dport != 100-200 drop
inet ip saddr 10.0.0.1 ip daddr 10.0.0.2 drop
ip6 ip6 saddr ::1 ip6 daddr ::2 drop
ip ip saddr 192.0.2.0/25 tcp dport 22 drop
ip ip protocol 47 drop
ip6 ip6 nexthdr tcp drop
ip6 ip6 saddr fe80::/10 udp dport 547 drop
`

// Rules of other programs are written as nft writes them.
func TestRulesAreWrittenAsNFTWritesThem(t *testing.T) {
	t.Parallel()
	ns := in(t)
	var text strings.Builder
	for _, family := range []string{"inet", "ip", "ip6"} {
		text.WriteString("table " + family + " others {\n")
		if family == "inet" {
			text.WriteString("set blocked { type ipv4_addr; }\n" +
				"set pairs { type ipv4_addr . inet_service; }\n")
		}

		text.WriteString("chain c {\ntype filter hook input priority 0;\n")
		for line := range strings.Lines(likeNFT) {
			if f, rule, _ := strings.Cut(line, " "); f == family {
				text.WriteString(rule)
			}
		}

		text.WriteString("}\n}\n")
	}

	nstest.NFT(t, ns, text.String())
	got, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
	require.NoError(t, err)
	compared := 0
	for _, c := range got {
		if c.Table != "others" {
			continue
		}
		var want, have []string
		list := nstest.Run(t, ns, "nft -s list chain "+c.Family+" others c")
		for line := range strings.Lines(list) {
			if line = strings.TrimSpace(line); strings.HasSuffix(line, "drop") {
				want = append(want, line)
			}
		}

		for _, rule := range c.Drops {
			have = append(have, rule.Text)
		}
		require.Equal(t, want, have)
		compared += len(have)
	}

	require.Equal(t, strings.Count(likeNFT, "\n")-1, compared)
}

// Rules of iptables-nft are read, too.
func TestReadSeesIptables(t *testing.T) {
	t.Parallel()
	ns := in(t)
	for _, target := range []string{"DROP", "REJECT"} {
		nstest.Run(t, ns, "iptables-nft -A FORWARD -j "+target)
	}
	got, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
	require.NoError(t, err)
	for _, c := range got {
		if c.Name == "FORWARD" {
			require.Len(t, c.Drops, 2)
			return
		}
	}

	require.Fail(t, "the chain is not there", "%v", got)
}

// Programs that commit all the time delay a reading, but do not make it fail.
func TestReadBesideABusyProgram(t *testing.T) {
	t.Parallel()
	ns := in(t)
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "add chain ip kernlb c%d\n", i)
	}
	nstest.NFT(t, ns, many.String())
	w, err := busywriter.Start(t.Context(), ns.NetNS())
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	for range 100 {
		_, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
		require.NoError(t, err)
	}
}

func TestAContextThatIsDoneEndsAReading(t *testing.T) {
	t.Parallel()
	ns := in(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := hooks.Read(ctx, &hooks.Config{NetNS: ns.NetNS()}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "read the chains of nf_tables: ")
}

// A chain accepts if one of its rules, or a rule of a chain that it jumps to, may accept new
// connections.
func TestReadTellsWhichChainsAcceptNewConnections(t *testing.T) {
	t.Parallel()
	for rules, accepts := range map[string]bool{
		"":                                     false,
		"drop":                                 false,
		"ct state established,related accept":  false,
		"ct state established,new accept":      true,
		"ct state != established accept":       true,
		"tcp dport 80 accept":                  true,
		"jump leads":                           true,
		"goto never":                           false,
		"tcp dport vmap { 80 : accept }":       true,
		"tcp dport @ports counter":             false,
		"ct state established jump leads":      true, // it does not, in fact
		"ct state invalid drop; counter; drop": false,
	} {
		ns := nstest.New(t)
		nstest.NFT(t, ns, `table inet fw {
			set ports { type inet_service; }
			chain leads { meta l4proto udp accept; }
			chain never { ct state related accept; }
			chain forward { type filter hook forward priority 0; policy drop; `+rules+`; }
		}`)
		chains, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
		require.NoError(t, err)
		require.Len(t, chains, 1)
		require.Equal(t, accepts, chains[0].Accepts, rules)
	}
}

// Conntrack states in rules of iptables-nft are read, too.
func TestReadKnowsTheStatesOfIptables(t *testing.T) {
	t.Parallel()
	for states, accepts := range map[string]bool{"RELATED,ESTABLISHED": false, "NEW": true,
		"ESTABLISHED,NEW": true, "UNTRACKED": true} {
		ns := nstest.New(t)
		nstest.Run(t, ns, "iptables-nft -P FORWARD DROP")
		nstest.Run(t, ns, "iptables-nft -A FORWARD -m conntrack --ctstate "+states+" -j ACCEPT")
		chains, err := hooks.Read(t.Context(), &hooks.Config{NetNS: ns.NetNS()}, nil)
		require.NoError(t, err)
		require.Len(t, chains, 1)
		require.Equal(t, accepts, chains[0].Accepts, states)
	}
}
