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
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A kube-proxy comes back after this backend has taken over from it. It writes its chains, and a
// cleanup removes all others. Then everything is as in the beginning. No connection broke, and no
// new one failed.
func TestKubeProxyComesBack(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	var before [2][]string
	for i, f := range nft.Families {
		runTool(t, c.Node.NS, kubeProxyRules(t, c, f), toolName(f.Model)+"-restore")
		before[i] = savedLines(t, c, f)
	}
	e := dataplane.New(b, nil)
	applied(t, e, takeoverState(c))
	held := ok(netnstest.OpenConns(t.Context(), c.Outside[0],
		netip.MustParseAddrPort("10.96.0.10:80"), 20))(t)
	defer held.Close()

	for _, f := range nft.Families {
		begin(t, c, f)
	}
	requireServed(t, c)
	cleanUp(t, e)
	require.Zero(t, held.Ping(5*time.Second).Lost())
	requireServed(t, c)
	for i, f := range nft.Families {
		require.ElementsMatch(t, before[i], savedLines(t, c, f))
	}
	require.Zero(t, cleanUp(t, e).Messages)
}

// A kube-proxy begins but cannot write: it would delete the chain of a service that is gone, while
// chains that it does not know lead there. The cleanup makes the write possible, and removes no
// service.
func TestKubeProxyComesBackAndCannotWrite(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	var before [2][]string
	for i, f := range nft.Families {
		runTool(t, c.Node.NS, kubeProxyRules(t, c, f), toolName(f.Model)+"-restore")
		before[i] = savedLines(t, c, f)
	}
	s := takeoverState(c)
	eps := s.Endpoints(svcName("web"))
	for i := range 100 { // enough for steps
		svc := &sm.Service{Name: svcName(fmt.Sprint("more-", i)),
			Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}},
			ClusterIPs: addrs(fmt.Sprintf("10.96.1.%d", i), fmt.Sprintf("fd00:10:96::1:%x", i))}
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	e := dataplane.New(b, nil)
	applied(t, e, s)
	require.Contains(t, save(t, c.Node.NS, nft.IPv4), ":KUBE-IP-")
	for _, f := range nft.Families {
		runTool(t, c.Node.NS, "", toolName(f.Model), "-N", "KUBE-EXTERNAL-SERVICES")
	}
	cleanUp(t, e)
	requireServed(t, c, "10.96.1.7:80", "[fd00:10:96::1:7]:80")
	for i, f := range nft.Families {
		begin(t, c, f)
		require.ElementsMatch(t, before[i], savedLines(t, c, f))
	}
}

// begin does the work of a kube-proxy that begins: it writes its chains, deletes the chains of
// services that it does not know, and adds the missing jumps from base chains.
func begin(t *testing.T, c *netnstest.Cluster, f *nft.Family) {
	t.Helper()
	text := kubeProxyRules(t, c, f)
	_, saved, _ := strings.Cut(save(t, c.Node.NS, f), "*nat\n")
	saved, _, _ = strings.Cut(saved, "COMMIT\n")
	var stale, deletes, jumps strings.Builder
	for _, chain := range chainOfService.FindAllStringSubmatch(saved, -1) {
		if !strings.Contains(text, chain[1]) {
			fmt.Fprintf(&stale, ":%s - [0:0]\n", chain[1])
			fmt.Fprintf(&deletes, "-X %s\n", chain[1])
		}
	}
	var chains strings.Builder
	table := ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		}
		of, isRule := strings.CutPrefix(line, "-A ")
		chain, rest, _ := strings.Cut(strings.TrimSpace(of), " ")
		switch {
		case table == "nat" && line == "*nat\n":
			chains.WriteString(line + stale.String())
		case table == "nat" && line == "COMMIT\n":
			chains.WriteString(deletes.String() + line)
		case !isRule || strings.Contains(chain, "-"):
			chains.WriteString(line)
		default:
			fmt.Fprintf(&jumps, "%[1]s -t %[2]s -C %[3]s %[4]s 2>/dev/null || "+
				"%[1]s -t %[2]s -A %[3]s %[4]s\n", toolName(f.Model), table, chain, rest)
		}
	}
	runTool(t, c.Node.NS, chains.String(), toolName(f.Model)+"-restore", "--noflush")
	runTool(t, c.Node.NS, jumps.String(), "sh", "-e")
}

var chainOfService = regexp.MustCompile(`(?m)^:(KUBE-(?:SVC|SVL|EXT|FW|SEP)-[A-Z2-7]{16}) `)

// requireServed requires that services answer.
func requireServed(t *testing.T, c *netnstest.Cluster, more ...string) {
	t.Helper()
	for _, to := range append(more, "10.96.0.10:80", "192.0.2.10:30080", "10.96.0.20:80",
		"203.0.113.20:80", "[fd00:10:96::a]:80", "[2001:db8:113::14]:80") {
		require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], to).Kind, to)
	}
}

// savedLines returns the lines of iptables-save, without counters. It ignores the position of jumps
// among those of other programs.
func savedLines(t *testing.T, c *netnstest.Cluster, f *nft.Family) []string {
	t.Helper()
	return strings.Split(counted.ReplaceAllString(save(t, c.Node.NS, f), ""), "\n")
}

var counted = regexp.MustCompile(`\[\d+:\d+\]`)
