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
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// kubeProxyValues are what the placeholders of testdata/kube-proxy.rules stand for, by family.
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
		return strings.NewReplacer(append(l, "$PODS", netnstest.ClusterCIDRv6, "$ICMP",
			"icmp6-port-unreachable",
			"$MASK", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "$WEB", "fd00:10:96::a/128",
			"$LOCALLB", "2001:db8:113::14/128",
			"$LOCAL", "fd00:10:96::14/128", "$EMPTYLB", "2001:db8:113::1e/128", "$EMPTY",
			"fd00:10:96::1e/128", "$GONE", "fd00:10:96::28/128")...)
	}
	return strings.NewReplacer(append(l, "$PODS", netnstest.ClusterCIDRv4, "$ICMP",
		"icmp-port-unreachable", "$MASK", "255.255.255.255",
		"$WEB", "10.96.0.10/32", "$LOCALLB", "203.0.113.20/32", "$LOCAL", "10.96.0.20/32",
		"$EMPTYLB", "203.0.113.30/32",
		"$EMPTY", "10.96.0.30/32", "$GONE", "10.96.0.40/32")...)
}

// kubeProxyRules returns what iptables-save prints of a node where kube-proxy 1.36 in iptables mode
// serves what takeoverState says, and a service more, which was deleted since: {web} is the hash of
// a service port's name, {web POD1} that of an endpoint of it.
func kubeProxyRules(t *testing.T, c *netnstest.Cluster, f *nft.Family) string {
	t.Helper()
	text, err := os.ReadFile("testdata/kube-proxy.rules")
	require.NoError(t, err)
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

// takeoverState has a service with affinity, one with source ranges and local policy, and one
// without endpoints.
func takeoverState(c *netnstest.Cluster) sm.State {
	s := podService(c, 2, func(s *sm.Service, _ *sm.Node) { s.SessionAffinity.ClientIP = true })
	port := func(nodePort uint16) []sm.ServicePort {
		return []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: nodePort}}
	}
	lb := func(l ...string) (ips []sm.LoadBalancerIP) {
		for _, a := range addrs(l...) {
			ips = append(ips, sm.LoadBalancerIP{Addr: a})
		}
		return ips
	}
	local := &sm.Service{
		Name: svcName("local"), Ports: port(30081), ClusterIPs: addrs("10.96.0.20",
			"fd00:10:96::14"),
		LoadBalancerIPs:       lb("203.0.113.20", "2001:db8:113::14"),
		ExternalTrafficPolicy: sm.PolicyLocal,
		LoadBalancerSourceRanges: []netip.Prefix{
			netip.PrefixFrom(c.Outside[0].IPv4, 32), netip.PrefixFrom(c.Outside[0].IPv6, 128),
		},
	}
	empty := &sm.Service{
		Name: svcName("empty"), Ports: port(30082), ClusterIPs: addrs("10.96.0.30",
			"fd00:10:96::1e"),
		LoadBalancerIPs: lb("203.0.113.30", "2001:db8:113::1e"),
	}
	return s.WithService(local).WithEndpoints(local.Name, s.Endpoints(svcName("web"))).
		WithService(empty)
}

// Taking over from kube-proxy breaks no connection and forgets no client; what it left behind goes,
// what is not its own stays.
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
			r, err := e.Apply(t.Context(), s.WithNode(node))
			require.NoError(t, err)
			require.NotEmpty(t, r.Drift)
			for _, conns := range held {
				require.Zero(t, conns.Ping(5*time.Second).Lost())
			}
			for to, server := range clients {
				for range 10 {
					require.Equal(t, server, dial(t, c.Outside[0], to).Server,
						"the client is still known")
				}
			}
			requireTakenOver(t, c)
			o, err := b.Observe(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, o.Drift)
			requireOthersStay(t, c)
			_, err = e.Cleanup(t.Context())
			require.NoError(t, err)
			requireOthersStay(t, c)
			require.Equal(t, !localhost, strings.Contains(save(t, c.Node.NS, nft.IPv4),
				"block incoming localnet connections"))
			require.Equal(t, map[bool]string{false: "1", true: "0"}[localhost], sysctlValue(t, b),
				"as long as the guard is there")
		})
	}
}

// holdConnections opens connections to what kube-proxy serves.
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

// requireTakenOver requires that packets are treated as the new state says, and that nothing of
// kube-proxy's is left.
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

// requireOthersStay requires that what is not of services is as it was.
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
