package iptables

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
)

// A kube-proxy comes back after this backend has taken over from it: it writes its chains, and a
// cleanup takes away all else. Then everything is as it was in the beginning, no connection broke,
// and no new one failed.
func TestKubeProxyComesBack(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	var before [2][]string
	for i, f := range nft.Families {
		runTool(t, c.Node.NS, kubeProxyRules(t, c, f), toolName(f.Model)+"-restore")
		before[i] = savedLines(t, c, f)
	}
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), takeoverState(c))
	require.NoError(t, err)
	held, err := netnstest.OpenConns(t.Context(), c.Outside[0],
		netip.MustParseAddrPort("10.96.0.10:80"), 20)
	require.NoError(t, err)
	defer held.Close()

	for _, f := range nft.Families {
		begin(t, c, f)
	}
	requireServed(t, c)
	_, err = e.Cleanup(t.Context())
	require.NoError(t, err)
	require.Zero(t, held.Ping(5*time.Second).Lost())
	requireServed(t, c)
	for i, f := range nft.Families {
		require.ElementsMatch(t, before[i], savedLines(t, c, f))
	}
	stats, err := e.Cleanup(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Messages)
}

// begin does what a kube-proxy does that begins: it writes its chains, and adds those jumps from
// base chains that are not there.
func begin(t *testing.T, c *netnstest.Cluster, f *nft.Family) {
	t.Helper()
	var chains, jumps strings.Builder
	table := ""
	for line := range strings.Lines(kubeProxyRules(t, c, f)) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		}
		of, isRule := strings.CutPrefix(line, "-A ")
		chain, rest, _ := strings.Cut(strings.TrimSpace(of), " ")
		if !isRule || strings.Contains(chain, "-") {
			chains.WriteString(line)
			continue
		}
		fmt.Fprintf(&jumps, "%[1]s -t %[2]s -C %[3]s %[4]s 2>/dev/null || "+
			"%[1]s -t %[2]s -A %[3]s %[4]s\n", toolName(f.Model), table, chain, rest)
	}
	runTool(t, c.Node.NS, chains.String(), toolName(f.Model)+"-restore", "--noflush")
	runTool(t, c.Node.NS, jumps.String(), "sh", "-e")
}

// requireServed requires that services answer.
func requireServed(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	for _, to := range []string{"10.96.0.10:80", "192.0.2.10:30080", "10.96.0.20:80",
		"203.0.113.20:80", "[fd00:10:96::a]:80", "[2001:db8:113::14]:80"} {
		require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], to).Kind, to)
	}
}

// savedLines returns the lines that iptables-save prints, without what is counted. Where jumps
// stand among those of others does not matter.
func savedLines(t *testing.T, c *netnstest.Cluster, f *nft.Family) []string {
	t.Helper()
	return strings.Split(counted.ReplaceAllString(save(t, c.Node.NS, f), ""), "\n")
}

var counted = regexp.MustCompile(`\[\d+:\d+\]`)
