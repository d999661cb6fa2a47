package iptables

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The conformance suite sends packets for everything that backends have in common. The tests here
// are for features of iptables only.

const backendPort = 8080

// clusterOf starts a network whose pods serve, and a backend on its node.
func clusterOf(t *testing.T) (*netnstest.Cluster, *backend) {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(sm.TCP, backendPort))
	}
	b := ok(openBackend(&Config{NetNS: c.Node.NS.Fd()}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return c, b
}

// podService is a service with the first n pods of the cluster as endpoints.
func podService(c *netnstest.Cluster, n int, change func(*sm.Service, *sm.Node)) sm.State {
	node := sm.Node{
		Name:      "node",
		Addresses: addrs(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6),
		LocalPods: sm.PodDetector{CIDRs: prefixes(netnstest.Net.ClusterCIDRv4,
			netnstest.Net.ClusterCIDRv6)},
	}
	svc := &sm.Service{
		Name:       svcName("web"),
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: 30080}},
		ClusterIPs: addrs("10.96.0.10", "fd00:10:96::a"),
	}
	if change != nil {
		change(svc, &node)
	}
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: backendPort}}
	var eps []sm.Endpoint
	for _, p := range c.Pods[:n] {
		for _, a := range []netip.Addr{p.IPv4, p.IPv6} {
			eps = append(eps, sm.Endpoint{Addr: a, Ready: true, Serving: true, Node: "node",
				Ports: ports})
		}
	}
	return sm.State{}.WithNode(node).WithService(svc).WithEndpoints(svc.Name, eps)
}

func dial(t *testing.T, from *netnstest.Host, to string) netnstest.Outcome {
	t.Helper()
	return netnstest.Probe{From: from, Proto: sm.TCP, To: netip.MustParseAddrPort(to),
		Timeout: 2 * time.Second}.Send(t.Context())
}

// A client gets the endpoint of its hash from all of its ports, and another program adopts
// the rules.
func TestSourceHashKeepsAClient(t *testing.T) {
	t.Parallel()
	c, b, e := engineIn(t)
	hash := func(s sm.Scheduler) sm.State {
		return podService(c, 3, func(svc *sm.Service, _ *sm.Node) { svc.Scheduler = s })
	}
	applied(t, e, hash("sh"))
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		first := dial(t, c.Outside[0], to)
		require.Equal(t, netnstest.Answered, first.Kind, first)
		for range 12 {
			require.Equal(t, first.Server, dial(t, c.Outside[0], to).Server)
		}
	}
	applied(t, e, hash("sh+port"))
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		servers := map[string]bool{}
		for range 40 {
			servers[dial(t, c.Outside[0], to).Server] = true
		}
		require.Len(t, servers, 3)
	}
	r := ok(dataplane.New(b, nil).Apply(t.Context(), hash("sh+port")))(t)
	require.Zero(t, r.Stats.Messages, "a new program adopts what is there")
}

func TestAClientStaysWithItsEndpoint(t *testing.T) {
	t.Parallel()
	c, _, e := engineIn(t)
	sticky := func(s *sm.Service, _ *sm.Node) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 2 * time.Second}
	}
	applied(t, e, podService(c, 3, sticky))
	for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
		first := dial(t, c.Outside[0], to)
		require.Equal(t, netnstest.Answered, first.Kind, first)
		for range 12 {
			require.Equal(t, first.Server, dial(t, c.Outside[0], to).Server, "within the timeout")
		}
		// Node ports remember clients together with the service port.
		port := netip.AddrPortFrom(c.Node.Addr(netip.MustParseAddrPort(to).Addr()), 30080)
		require.Equal(t, first.Server, dial(t, c.Outside[0], port.String()).Server)
	}

	// When the endpoint leaves, the client is given another one, and keeps it.
	var gone int
	first := dial(t, c.Outside[1], "10.96.0.10:80").Server
	for i, p := range c.Pods {
		if p.Name == first {
			gone = i
		}
	}
	c.Pods[gone], c.Pods[2] = c.Pods[2], c.Pods[gone]
	applied(t, e, podService(c, 2, sticky))
	second := dial(t, c.Outside[1], "10.96.0.10:80").Server
	require.NotEqual(t, first, second)
	for range 8 {
		require.Equal(t, second, dial(t, c.Outside[1], "10.96.0.10:80").Server)
	}

	// After the timeout the client is forgotten: sooner or later it gets another endpoint.
	require.Eventually(t, func() bool {
		time.Sleep(2200 * time.Millisecond)
		return dial(t, c.Outside[1], "10.96.0.10:80").Server != second
	}, 40*time.Second, time.Millisecond)
}

func TestNodePortsAtLocalhost(t *testing.T) {
	t.Parallel()
	c, _, e := engineIn(t)
	local := func(_ *sm.Service, n *sm.Node) { n.LocalhostNodePorts = true }
	applied(t, e, podService(c, 3, nil))
	require.Equal(t, netnstest.Refused, dial(t, c.Node, "127.0.0.1:30080").Kind)

	applied(t, e, podService(c, 3, local))
	o := dial(t, c.Node, "127.0.0.1:30080")
	require.Equal(t, netnstest.Answered, o.Kind, o)
	require.True(t, c.IsNodeAddr(o.Source.Addr()), "masqueraded: %s", o)
	v := ok(c.Node.NS.Sysctl("net/ipv4/conf/all/route_localnet"))(t)
	require.Equal(t, "1", v)
	// A program that listens only on loopback is still not open to others.
	ok(c.Node.NS.Serve("local", sm.TCP, netip.MustParseAddrPort("127.0.0.2:9090")))(t)
	require.Equal(t, "local", dial(t, c.Node, "127.0.0.2:9090").Server)
	require.NoError(t, c.Pods[0].NS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	nstest.Run(t, c.Pods[0].NS, "ip route add table local unicast 127.0.0.2/32 dev eth0 onlink "+
		"via "+c.Node.IPv4.String())
	o = dial(t, c.Pods[0], "127.0.0.2:9090")
	require.Equal(t, netnstest.Dropped, o.Kind, o)
	runTool(t, c.Node.NS, "", "iptables", "-F", "KUBE-FIREWALL")
	require.Equal(t, "local", dial(t, c.Pods[0], "127.0.0.2:9090").Server,
		"it is the guard that drops it")

	// Another program turns the sysctl off: that is drift, too.
	require.NoError(t, c.Node.NS.SetSysctl("net/ipv4/conf/all/route_localnet", "0"))
	r := applied(t, e, podService(c, 3, local))
	require.Len(t, r.Drift, 2)
	require.Contains(t, r.Drift[0], "chain KUBE-FIREWALL of table ip filter lacks 1")
	require.Equal(t, "sysctl net.ipv4.conf.all.route_localnet is 0", r.Drift[1])
	require.Equal(t, netnstest.Answered, dial(t, c.Node, "127.0.0.1:30080").Kind)
}

// A port that is published at a loopback address answers the node, and not its neighbours.
func TestPublishedAtLoopback(t *testing.T) {
	t.Parallel()
	c, _, e := engineIn(t)
	published := podService(c, 3, func(svc *sm.Service, n *sm.Node) {
		n.LocalhostNodePorts, svc.HostIPs = true, addrs("127.0.0.2")
		svc.Masquerade = sm.MasqueradeAt(sm.MasqueradeNever)
	})
	applied(t, e, published)
	o := dial(t, c.Node, "127.0.0.2:80")
	require.Equal(t, netnstest.Answered, o.Kind, o)
	require.True(t, c.IsNodeAddr(o.Source.Addr()), "masqueraded: %s", o)

	require.NoError(t, c.Pods[0].NS.SetSysctl("net/ipv4/conf/all/route_localnet", "1"))
	nstest.Run(t, c.Pods[0].NS, "ip route add table local unicast 127.0.0.2/32 dev eth0 onlink "+
		"via "+c.Node.IPv4.String())
	o = dial(t, c.Pods[0], "127.0.0.2:80")
	require.Equal(t, netnstest.Dropped, o.Kind, o)

	again, err := openBackend(&Config{NetNS: c.Node.NS.Fd()}) // another process adopts it
	require.NoError(t, err)
	defer again.Close()
	r := applied(t, dataplane.New(again, nil), published)
	require.Zero(t, r.Messages, r.Changes)
}

// When node ports at localhost end, the sysctl and then the guard go, whether the option, the
// address or all of it is removed.
func TestNodePortsAtLocalhostGoAgain(t *testing.T) {
	t.Parallel()
	c, b, e := engineIn(t)
	local := func(_ *sm.Service, n *sm.Node) { n.LocalhostNodePorts = true }
	restricted := func(_ *sm.Service, n *sm.Node) {
		n.LocalhostNodePorts = true
		n.NodePortAddresses = sm.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24")}
	}
	runTool(t, c.Node.NS, "*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n",
		"iptables-restore", "--noflush")
	for _, away := range []struct {
		name string
		how  func() error
	}{
		{"the option", func() error {
			_, err := e.Apply(t.Context(), podService(c, 3, nil))
			return err
		}},
		{"the address", func() error {
			_, err := e.Apply(t.Context(), podService(c, 3, restricted))
			return err
		}},
		{"everything", func() error { _, err := e.Cleanup(t.Context()); return err }},
	} {
		applied(t, e, podService(c, 3, local))
		require.Equal(t, "1", sysctlValue(t, b))
		require.Equal(t, netnstest.Answered, dial(t, c.Node, "127.0.0.1:30080").Kind)
		require.Equal(t, netnstest.Refused, dial(t, c.Node, "[::1]:30080").Kind,
			"IPv4 only, as with kube-proxy")
		saved := save(t, c.Node.NS, nft.IPv4)
		require.Contains(t, saved, "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8")
		for _, hook := range []string{"INPUT", "OUTPUT"} {
			require.Regexp(t,
				"(?m)^-A "+hook+" -m comment --comment .* -j KUBE-FIREWALL\n-A "+hook+" ", saved,
				"the guard comes first")
		}

		require.NoError(t, away.how(), away.name)
		require.Equal(t, "0", sysctlValue(t, b), away.name)
		require.Equal(t, netnstest.Refused, dial(t, c.Node, "127.0.0.1:30080").Kind, away.name)
		saved = save(t, c.Node.NS, nft.IPv4)
		require.NotContains(t, saved, "localhost node ports", away.name)
		require.NotContains(t, saved, "-A KUBE-FIREWALL", away.name)
		require.Contains(t, saved, "-A INPUT -j KUBE-FIREWALL\n", "the jump of somebody else")
	}
}

// Connections survive while other services come, change and go, and while endpoints of their own
// service do.
func TestConnectionsSurviveChanges(t *testing.T) {
	t.Parallel()
	c, _, e := engineIn(t)
	s := podService(c, 2, nil)
	applied(t, e, s)
	conns := ok(netnstest.OpenConns(t.Context(), c.Outside[0],
		netip.MustParseAddrPort("10.96.0.10:80"), 100))(t)
	defer conns.Close()
	ctx, cancel := context.WithCancel(t.Context())
	report := make(chan netnstest.ConnsReport)
	go func() { report <- conns.Watch(ctx, 20*time.Millisecond, 5*time.Second) }()
	for i := range 60 {
		s := manyServices(1+i%40, 3)
		for svc := range podService(c, 1+i%3, nil).Services() {
			s = s.WithService(svc).WithEndpoints(svc.Name, podService(c, 1+i%3, nil).Endpoints(
				svc.Name))
		}
		applied(t, e, s)
	}
	cancel()
	require.Zero(t, (<-report).Lost())
}
