package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// kubeProxyValues are the values of the placeholders in testdata/kube-proxy.rules, by family.
func kubeProxyValues(c *netnstest.Cluster, f *nft.Family) *strings.Replacer {
	pod := func(i int) netip.Addr { return c.Pods[i].Addr(f.Loopback.Addr()) }
	host := func(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }
	to := func(i int) string { return netip.AddrPortFrom(pod(i), backendPort).String() }
	l := []string{
		"$POD1", host(pod(0)), "$POD2", host(pod(1)), "$TO1", to(0), "$TO2", to(1), "$LOOP",
		f.Loopback.String(),
		"$CLIENTS", host(c.Outside[0].Addr(f.Loopback.Addr())),
	}
	if f.Model == sm.IPv6 {
		return strings.NewReplacer(append(l, "$PODS", netnstest.Net.ClusterCIDRv6, "$ICMP",
			"icmp6-port-unreachable",
			"$MASK", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "$WEB", "fd00:10:96::a/128",
			"$LOCALLB", "2001:db8:113::14/128",
			"$LOCAL", "fd00:10:96::14/128", "$EMPTYLB", "2001:db8:113::1e/128", "$EMPTY",
			"fd00:10:96::1e/128", "$GONE", "fd00:10:96::28/128")...)
	}

	return strings.NewReplacer(append(l, "$PODS", netnstest.Net.ClusterCIDRv4, "$ICMP",
		"icmp-port-unreachable", "$MASK", "255.255.255.255",
		"$WEB", "10.96.0.10/32", "$LOCALLB", "203.0.113.20/32", "$LOCAL", "10.96.0.20/32",
		"$EMPTYLB", "203.0.113.30/32",
		"$EMPTY", "10.96.0.30/32", "$GONE", "10.96.0.40/32")...)
}

// kubeProxyRules returns the iptables-save output of a node where kube-proxy 1.36 in iptables mode
// serves takeoverState and a service that was deleted later. {web} is the hash of a service port's
// name, and {web POD1} the hash of one of its endpoints.
func kubeProxyRules(t *testing.T, c *netnstest.Cluster, f *nft.Family) string {
	t.Helper()
	text := ok(os.ReadFile("testdata/kube-proxy.rules"))(t)
	hashed := regexp.MustCompile(`\{(\w+)(?: POD(\d))?\}`).ReplaceAllStringFunc(string(text),
		func(s string) string {
			name, pod, _ := strings.Cut(strings.Trim(s, "{}"), " POD")
			name = "default/" + name + ":httptcp"
			if pod != "" {
				name += netip.AddrPortFrom(c.Pods[pod[0]-'1'].Addr(f.Loopback.Addr()), backendPort).
					String()
			}

			return hash(name)
		})
	return kubeProxyValues(c, f).Replace(hashed)
}

// takeoverState has a service with affinity, a service with source ranges and local policy, and a
// service without endpoints.
func takeoverState(c *netnstest.Cluster) sm.State {
	s := podService(c, 2, func(s *sm.Service, _ *sm.Node) { s.SessionAffinity.ClientIP = true })
	port := func(nodePort uint16) []sm.ServicePort {
		return []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: nodePort}}
	}
	lb := func(l ...string) (ips []sm.LoadBalancerIP) {
		for _, a := range must.Addrs(l...) {
			ips = append(ips, sm.LoadBalancerIP{Addr: a})
		}
		return ips
	}

	local := &sm.Service{
		Name: svcName("local"), Ports: port(30081), ClusterIPs: must.Addrs("10.96.0.20",
			"fd00:10:96::14"),
		LoadBalancerIPs:       lb("203.0.113.20", "2001:db8:113::14"),
		ExternalTrafficPolicy: sm.PolicyLocal,
		LoadBalancerSourceRanges: []netip.Prefix{
			netip.PrefixFrom(c.Outside[0].IPv4, 32), netip.PrefixFrom(c.Outside[0].IPv6, 128),
		},
	}
	empty := &sm.Service{
		Name: svcName("empty"), Ports: port(30082), ClusterIPs: must.Addrs("10.96.0.30",
			"fd00:10:96::1e"),
		LoadBalancerIPs: lb("203.0.113.30", "2001:db8:113::1e"),
	}
	return s.WithService(local).WithEndpoints(local.Name, s.Endpoints(svcName("web"))).
		WithService(empty)
}

// A takeover from kube-proxy breaks no connection and forgets no client. Leftover objects of
// kube-proxy are removed, and objects of other programs stay.
func TestTakingOverFromKubeProxy(t *testing.T) {
	t.Parallel()
	for _, localhost := range []bool{false, true} {
		t.Run(fmt.Sprintf("node ports at localhost %t", localhost), func(t *testing.T) {
			t.Parallel()
			c, b := clusterOf(t)
			for _, f := range nft.Families {
				runTool(t, c.Node.NS, kubeProxyRules(t, c, f), toolName(f.Model)+"-restore")
			}
			require.NoError(t, c.Node.NS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
			held := holdConnections(t, c)
			clients := map[string]string{}
			for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
				clients[to] = dial(t, c.Outside[0], to).Server
			}

			s := takeoverState(c)
			node := s.Node()
			node.LocalhostNodePorts = localhost
			e := dataplane.New(b, nil)
			r := applied(t, e, s.WithNode(node))
			require.NotEmpty(t, r.Drift)
			for _, conns := range held {
				require.Zero(t, conns.Ping(time.Minute).Lost())
			}
			for to, server := range clients {
				for range 10 {
					require.Equal(t, server, dial(t, c.Outside[0], to).Server,
						"the client is still known")
				}
			}

			requireTakenOver(t, c)
			require.Empty(t, observation(t, b).Drift)
			requireOthersStay(t, c)
			cleanUp(t, e)
			requireOthersStay(t, c)
			require.Contains(t, save(t, c.Node.NS, nft.IPv4), "block incoming localnet connections",
				"it was there before")
			require.Equal(t, map[bool]string{false: "1", true: "0"}[localhost], sysctlValue(t, b))
		})
	}
}

// holdConnections opens connections to the services of kube-proxy.
func holdConnections(t *testing.T, c *netnstest.Cluster) []*netnstest.Conns {
	t.Helper()
	var held []*netnstest.Conns
	for _, to := range []string{
		"10.96.0.10:80", "192.0.2.10:30080", "10.96.0.20:80", "192.0.2.10:30081", "203.0.113.20:80",
		"10.96.0.40:80",
		"[fd00:10:96::a]:80", "[fd00:10:96::14]:80", "[2001:db8:113::14]:80", "[fd00:10:96::28]:80",
	} {
		conns, err := netnstest.OpenConns(t.Context(), c.Outside[0], netip.MustParseAddrPort(to),
			20)
		require.NoError(t, err, to)
		t.Cleanup(func() { require.NoError(t, conns.Close()) })
		held = append(held, conns)
	}

	return held
}

// requireTakenOver requires that packets are treated according to the new state, and that no object
// of kube-proxy is left.
func requireTakenOver(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	for i, to := range [][]string{
		{"10.96.0.20:80", "192.0.2.10:30081", "203.0.113.20:80", "10.96.0.30:80"},
		{"[fd00:10:96::14]:80", "[2001:db8:2::10]:30081", "[2001:db8:113::14]:80",
			"[fd00:10:96::1e]:80"},
	} {
		for _, a := range to[:3] {
			require.Equal(t, netnstest.Answered, dial(t, c.Outside[0], a).Kind, a)
		}
		require.Equal(t, netnstest.Dropped, dial(t, c.Outside[1], to[2]).Kind,
			"a source that is not allowed")
		require.Equal(t, netnstest.Refused, dial(t, c.Pods[0], to[3]).Kind, "no endpoints")

		saved := save(t, c.Node.NS, nft.Families[i])
		for _, gone := range []string{
			"KUBE-SEP-", "KUBE-EXTERNAL-SERVICES", "--ctstate INVALID", "default/gone",
			"health check", "KUBE-SVC-" + hash("default/gone:httptcp"),
		} {
			require.NotContains(t, strings.ReplaceAll(saved, "--name KUBE-SEP-", ""), gone)
		}
	}
}

// requireOthersStay requires that objects of other programs are unchanged.
func requireOthersStay(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	for _, f := range nft.Families {
		saved := save(t, c.Node.NS, f)
		for _, others := range []string{
			":FORWARD DROP", ":KUBE-IPTABLES-HINT", ":KUBE-KUBELET-CANARY", ":KUBE-PROXY-CANARY",
			"-A INPUT -j KUBE-FIREWALL\n",
			"-A OUTPUT -j KUBE-FIREWALL\n",
			"-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n",
			"-j CNI-FORWARD", "-A CNI-FORWARD", "-j CNI-HOSTPORT-MASQ", "-A CNI-HOSTPORT-MASQ",
		} {
			require.Contains(t, saved, others, "%s", f.Name)
		}
	}
}

// Another program's chains with the instance's names stay, unless TakeOver is set. The chains
// belong to an instance of kernlb if one of them is a chain that only kernlb makes.
func TestChainsOfOthersStay(t *testing.T) {
	t.Parallel()
	const rules = "*filter\n:%[1]s - [0:0]\n%[2]s-A FORWARD -j %[1]s\n" +
		"-A %[1]s -s 10.66.0.0/16 -j DROP\nCOMMIT\n"
	for _, c := range []struct {
		prefix, chain, more string
		takeOver, collides  bool
	}{
		{prefix: "DOCKER", chain: "DOCKER-FORWARD", collides: true},
		{prefix: "CNI", chain: "CNI-FORWARD", collides: true},
		{prefix: "CNI", chain: "CNI-FORWARD", takeOver: true},
		{prefix: "MYLB", chain: "MYLB-FORWARD", more: ":MYLB-CLUSTER-IPS - [0:0]\n"},
		{prefix: "CNI", chain: "CNI-ADMIN"},
	} {
		t.Run(c.chain, func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{Prefix: c.prefix, TakeOver: c.takeOver})
			runTool(t, ns, fmt.Sprintf(rules, c.chain, c.more), "iptables-restore", "--noflush")
			before := save(t, ns, nft.IPv4)
			e := dataplane.New(b, nil)
			_, err := e.Apply(t.Context(), webService())
			if !c.collides {
				require.NoError(t, err)
				require.Equal(t, c.chain == "CNI-ADMIN",
					strings.Contains(save(t, ns, nft.IPv4), "10.66.0.0/16"))
				return
			}

			require.ErrorIs(t, err, backends.ErrCollision)
			require.ErrorContains(t, err, "chain "+c.chain+" of table ip filter is not ours")
			require.Zero(t, cleanUp(t, e).Messages)
			require.Equal(t, before, save(t, ns, nft.IPv4))

			runTool(t, ns, "", "iptables", "-D", "FORWARD", "-j", c.chain)
			runTool(t, ns, "", "iptables", "-F", c.chain)
			runTool(t, ns, "", "iptables", "-X", c.chain)
			_, err = e.Apply(t.Context(), webService())
			require.NoError(t, err, "as soon as the chain is gone")
		})
	}
}

// A kube-proxy comes back after this backend has taken over from it. It writes its chains, and a
// cleanup removes all other chains. Then everything is as in the beginning. No connection broke,
// and no new connection failed.
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
	require.Zero(t, held.Ping(time.Minute).Lost())
	requireServed(t, c)
	for i, f := range nft.Families {
		require.ElementsMatch(t, before[i], savedLines(t, c, f))
	}
	require.Zero(t, cleanUp(t, e).Messages)
}

// A kube-proxy starts but cannot write: it would delete the chain of a removed service, while
// chains that it does not know jump to that chain. The cleanup makes the write possible, and
// removes no service.
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
			ClusterIPs: must.Addrs(fmt.Sprint("10.96.1.", i), fmt.Sprintf("fd00:10:96::1:%x", i))}
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

// begin does the work of a kube-proxy that starts: it writes its chains, deletes the chains of
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
// among the jumps of other programs.
func savedLines(t *testing.T, c *netnstest.Cluster, f *nft.Family) []string {
	t.Helper()
	return strings.Split(counted.ReplaceAllString(save(t, c.Node.NS, f), ""), "\n")
}

var counted = regexp.MustCompile(`\[\d+:\d+\]`)
