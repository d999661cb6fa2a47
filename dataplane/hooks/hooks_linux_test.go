package hooks_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel/graph"
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

// in makes a namespace with the ruleset, and a reader of it.
func in(t *testing.T) (*netnstest.NS, *hooks.Reader) {
	t.Helper()
	netnstest.Require(t)
	ns, err := netnstest.NewNS("hooks")
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	var r *hooks.Reader
	require.NoError(t, ns.Do(func() (err error) {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(ruleset)
		if err = cmd.Run(); err == nil {
			r, err = hooks.Open()
		}
		return err
	}))
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return ns, r
}

// All base chains are read, with the rules that drop in them and in those that they lead to, and
// no other rules.
func TestReadTellsWhatDrops(t *testing.T) {
	t.Parallel()
	_, r := in(t)
	got, err := r.Read(t.Context(), func(table string) bool { return table == "kernlb" })
	require.NoError(t, err)
	for i := range got {
		for j := range got[i].Drops {
			require.NotZero(t, got[i].Drops[j].Handle)
			got[i].Drops[j].Handle = 0
		}
	}
	require.Equal(t, []graph.Chain{
		{Family: "inet", Table: "fw", Name: "forward_all", Type: "filter", Hook: graph.Forward,
			Priority: 5, DropsByDefault: true, Drops: []graph.Rule{
				{Chain: "more", Text: "reject"},
				{Chain: "last", Text: "counter drop", Comment: "telnet is gone"},
			}},
		{Family: "inet", Table: "fw", Name: "out", Type: "filter", Hook: graph.Postrouting,
			Priority: 10},
		{Family: "ip", Table: "kernlb", Name: "a", Type: "nat", Priority: -100},
	}, got)
	got, err = r.Read(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, "drop", got[2].Drops[0].Text, "nothing is skipped")
}

// Rules of iptables, in the variant that works on nf_tables, are read, too.
func TestReadSeesIptables(t *testing.T) {
	t.Parallel()
	ns, r := in(t)
	for _, target := range []string{"DROP", "REJECT"} {
		require.NoError(t, ns.Do(func() error {
			return exec.Command("iptables-nft", "-A", "FORWARD", "-j", target).Run()
		}))
	}
	got, err := r.Read(t.Context(), nil)
	require.NoError(t, err)
	for _, c := range got {
		if c.Name == "FORWARD" {
			require.Len(t, c.Drops, 2)
			return
		}
	}
	require.Fail(t, "the chain is not there", "%v", got)
}

func TestAContextThatIsDoneEndsAReading(t *testing.T) {
	t.Parallel()
	_, r := in(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := r.Read(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "read the chains of nf_tables: ")
}
