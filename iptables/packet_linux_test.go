package iptables

import (
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The conformance suite sends packets for the common features of backends. The tests here are only
// for features of iptables.

const backendPort = 8080

// clusterOf starts a network whose pods serve, and a backend on its node.
func clusterOf(t *testing.T) (*netnstest.Cluster, *backend) {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(sm.TCP, backendPort))
	}
	b := ok(openBackend(&Config{NetNS: c.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return c, b
}

// podService returns a service whose endpoints are the first n pods of the cluster.
func podService(c *netnstest.Cluster, n int, change func(*sm.Service, *sm.Node)) sm.State {
	node := sm.Node{
		Name:      "node",
		Addresses: must.Addrs(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6),
		LocalPods: sm.PodDetector{CIDRs: must.Prefixes(netnstest.Net.ClusterCIDRv4,
			netnstest.Net.ClusterCIDRv6)},
	}
	svc := &sm.Service{
		Name:       svcName("web"),
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80, NodePort: 30080}},
		ClusterIPs: must.Addrs("10.96.0.10", "fd00:10:96::a"),
	}
	if change != nil {
		change(svc, &node)
	}
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: backendPort}}
	var eps []sm.Endpoint
	for _, p := range c.Pods[:n] {
		for _, a := range []netip.Addr{p.IPv4, p.IPv6} {
			eps = append(eps, sm.Endpoint{Addr: a, Node: "node",
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

	// A program that listens only on loopback still cannot be reached from other hosts.
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

// only returns the state with only these pods as endpoints of the service.
func only(c *netnstest.Cluster, s sm.State, port sm.EndpointPort, pods ...int) sm.State {
	var eps []sm.Endpoint
	for _, i := range pods {
		for _, a := range []netip.Addr{c.Pods[i].IPv4, c.Pods[i].IPv6} {
			eps = append(eps, sm.Endpoint{
				Addr: a, Node: "node", Ports: []sm.EndpointPort{port},
			})
		}
	}

	return s.WithEndpoints(svcName("web"), eps)
}

var httpPort = sm.EndpointPort{Name: "http", Protocol: sm.TCP, Port: backendPort}

// As with kube-proxy, an endpoint that was removed and comes back has no clients. Clients that got
// a different endpoint in between keep it.
func TestAnEndpointThatComesBackKnowsNobody(t *testing.T) {
	t.Parallel()
	c, b, e := engineIn(t)
	s := podService(c, 3, func(s *sm.Service, _ *sm.Node) {
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	})
	name := sm.PortName{Name: svcName("web"), Port: "http", Protocol: sm.TCP}
	for i, f := range nft.Families {
		to := []string{"10.96.0.10:80", "[fd00:10:96::a]:80"}[i]
		ep := netip.AddrPortFrom(c.Pods[0].Addr(f.Loopback.Addr()), backendPort)
		applied(t, e, only(c, s, httpPort, 0))
		for _, client := range c.Outside {
			require.Equal(t, c.Pods[0].Name, dial(t, client, to).Server)
		}
		require.NotEmpty(t, remembered(t, c.Node.NS, b, name, ep))
		applied(t, e, only(c, s, httpPort, 1))
		require.Equal(t, c.Pods[1].Name, dial(t, c.Outside[0], to).Server)
		applied(t, e, only(c, s, httpPort, 0, 1))
		require.Empty(t, remembered(t, c.Node.NS, b, name, ep))
		for range 5 {
			require.Equal(t, c.Pods[1].Name, dial(t, c.Outside[0], to).Server)
		}
	}
}

// remembered returns the clients of an endpoint that xt_recent remembers.
func remembered(
	t *testing.T, ns *netnstest.NS, b *backend, name sm.PortName, ep netip.AddrPort,
) string {
	t.Helper()
	var text []byte
	require.NoError(t, ns.Do(func() (err error) {
		list := b.l.names.affinityList(name, ep, affinity{})
		text, err = os.ReadFile("/proc/thread-self/net/xt_recent/" + list)
		return err
	}))

	return string(text)
}

// If INPUT drops packets, load balancers still reach the health check node ports, and nothing else.
// The rules are repaired and adopted like all others, and are removed with the last health check.
func TestHealthChecksPassWhereInputDrops(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	for _, port := range []uint16{32555, 32556} {
		require.NoError(t, c.Node.Serve(sm.TCP, port))
	}
	for _, f := range nft.Families {
		runTool(t, c.Node.NS, "", toolName(f.Model), "-P", "INPUT", "DROP")
	}
	runTool(t, c.Node.NS, "", "ip6tables", "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
	requireDial := func(want netnstest.OutcomeKind, to ...string) {
		t.Helper()
		for _, a := range to {
			require.Equal(t, want, dial(t, c.Outside[0], a).Kind, a)
		}
	}

	checks := []string{"192.0.2.10:32555", "[2001:db8:2::10]:32555"}
	requireDial(netnstest.Dropped, checks...)

	with := podService(c, 3, func(svc *sm.Service, _ *sm.Node) {
		svc.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: must.Addrs("203.0.113.8")[0]}}
		svc.ExternalTrafficPolicy, svc.HealthCheckNodePort = sm.PolicyLocal, 32555
	})
	again := another(t, c.Node.NS)

	// This backend observes before there are health checks, and must not take later health checks
	// for surplus.
	ok(again.Observe(t.Context(), nil))(t)
	e := dataplane.New(b, nil)
	applied(t, e, with)
	requireDial(netnstest.Answered, checks...)
	requireDial(netnstest.Dropped, "192.0.2.10:32556")

	runTool(t, c.Node.NS, "", "iptables", "-F", "KUBE-HEALTH-CHECKS")
	r := applied(t, e, with)
	require.Equal(t, []string{"chain KUBE-HEALTH-CHECKS of table ip filter lacks 1 and has 0 " +
		"surplus rules; missing: -p tcp -m tcp --dport 32555 -m comment --comment " +
		`"default/web health check node port" -j ACCEPT`}, r.Drift)
	requireDial(netnstest.Answered, checks...)

	adopts := dataplane.New(again, nil)
	r = applied(t, adopts, with)
	require.Empty(t, r.Drift)
	require.Zero(t, r.Stats.Messages, r.Changes)
	for svc := range with.Services() {
		other := *svc
		other.HealthCheckNodePort = 32556
		applied(t, adopts, with.WithService(&other))
	}

	requireDial(netnstest.Dropped, checks...)
	requireDial(netnstest.Answered, "192.0.2.10:32556")
	applied(t, adopts, podService(c, 3, nil))
	for _, f := range nft.Families {
		require.NotContains(t, save(t, c.Node.NS, f), "HEALTH-CHECKS")
	}
}

// Packets find their service among many, by address, protocol and port. Packets to other
// destinations find none.
func TestPacketsFindTheirServiceAmongMany(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	s := manyServices(1500, 1)
	node := s.Node()
	node.Addresses = must.Addrs(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6)
	s = s.WithNode(node)
	pod := c.Pods[1]
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: backendPort}}
	for i := 7; i < 1500; i += 100 {
		svc := *s.Service(svcName("service-" + strconv.Itoa(i)))
		svc.Ports = []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: uint16(30000 + i)}}
		s = s.WithService(&svc).WithEndpoints(svc.Name,
			[]sm.Endpoint{{Addr: pod.IPv4, Node: "node", Ports: ports}})
	}

	applied(t, dataplane.New(b, nil), s)
	for i := 7; i < 1500; i += 100 {
		for _, to := range []netip.AddrPort{netip.AddrPortFrom(spread(i), 80),
			netip.AddrPortFrom(c.Node.IPv4, uint16(30000+i))} {
			o := dial(t, c.Pods[0], to.String())
			require.Equal(t, pod.Name, o.Server, "%s: %s", to, o)
		}

		require.Equal(t, netnstest.Refused,
			dial(t, c.Pods[0], netip.AddrPortFrom(spread(i), 81).String()).Kind, "another port")
	}

	unused := netnstest.Probe{From: c.Pods[0], Proto: sm.TCP,
		To: netip.MustParseAddrPort("10.100.7.9:80")}
	require.Equal(t, netnstest.Dropped, unused.Send(t.Context()).Kind,
		"an unused address of the service range")
}

// All packets to a range reach the same port of its endpoints. A hash of the client and its memory
// choose the same endpoint at all ports.
func TestARangeLeadsToOnePort(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*sm.Service){
		"hash": func(s *sm.Service) { s.Scheduler = sm.SourceHash },
		"affinity of a prefix": func(s *sm.Service) {
			s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Hour, Bits4: 24,
				Bits6: 64}
		},
		"affinity of the whole service": func(s *sm.Service) {
			s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Hour,
				WholeService: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, e := engineIn(t)
			applied(t, e, podService(c, 3, func(s *sm.Service, _ *sm.Node) {
				s.Ports[0].EndPort, s.Ports[0].NodePort = 90, 0
				edit(s)
			}))

			for _, to := range []string{"10.96.0.10:", "[fd00:10:96::a]:"} {
				first := dial(t, c.Outside[0], to+"80")
				require.Equal(t, netnstest.Answered, first.Kind, first)
				for _, port := range []string{"81", "85", "90"} {
					require.Equal(t, first.Server, dial(t, c.Outside[0], to+port).Server, to+port)
				}
				require.NotEqual(t, netnstest.Answered, dial(t, c.Outside[0], to+"91").Kind)
			}
		})
	}
}
