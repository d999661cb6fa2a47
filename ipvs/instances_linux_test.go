package ipvs_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// neighbour is one of two instances on a node. Its service has a cluster IP, and an external
// address with different endpoints for clients outside.
type neighbour struct {
	*kernel
	table             string
	cluster, external netip.Addr
	muted             bool // it masquerades nothing
}

func (k *kernel) neighbour(table, cluster, external string) *neighbour {
	n := &neighbour{kernel: &kernel{Cluster: k.Cluster, t: k.t, pods: k.pods}, table: table,
		cluster: netip.MustParseAddr(cluster), external: netip.MustParseAddr(external)}
	n.restart(ipvs.Config{Table: table})
	return n
}

// state returns the service, whose endpoint on this node is pod2. Both instances declare the range
// of cluster IPs.
func (n *neighbour) state(split bool) sm.State {
	svc := web(func(s *sm.Service) {
		s.Ports[0].NodePort = 0
		s.ClusterIPs, s.ExternalIPs = []netip.Addr{n.cluster}, []netip.Addr{n.external}
		if split {
			s.ExternalTrafficPolicy = sm.PolicyLocal
		}
	})
	s := n.kernel.state(svc, "pod2", "pod3")
	l := s.Endpoints(svc.Name)
	for i := range l {
		if l[i].Addr == n.pods["pod3"].IPv4 || l[i].Addr == n.pods["pod3"].IPv6 {
			l[i].Node = "other"
		}
	}

	return s.WithEndpoints(svc.Name, l).WithNode(sm.Node{Name: "this",
		MasqueradeAll: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
}

// requireFate requires that the service treats pods, the host and a client outside according to its
// settings.
func (n *neighbour) requireFate() {
	n.t.Helper()
	for _, c := range []struct {
		from       *netnstest.Host
		to         netip.Addr
		servers    []string
		masquerade bool
	}{
		{n.pods["pod1"], n.cluster, []string{"pod2", "pod3"}, true},
		{n.Node, n.cluster, []string{"pod2", "pod3"}, true},
		{n.Outside[0], n.external, []string{"pod2"}, false},
		{n.Node, n.external, []string{"pod2", "pod3"}, true},
	} {
		var probes []netnstest.Probe
		for range 6 {
			probes = append(probes, netnstest.Probe{From: c.from, Proto: sm.TCP,
				To: netip.AddrPortFrom(c.to, 80)})
		}

		for i, o := range netnstest.SendAll(n.t.Context(), probes) {
			require.Equal(n.t, netnstest.Answered, o.Kind, "%s: %v: %v", n.table, probes[i], o)
			require.Contains(n.t, c.servers, o.Server, "%s: %v", n.table, probes[i])
			if c.from != n.Node {
				require.Equal(n.t, c.masquerade && !n.muted, o.Source.Addr() != c.from.IPv4,
					"%s: %v: %v", n.table, probes[i], o)
			}
		}
	}
}

// Two instances with firewall marks share a node, and the range of cluster IPs. Neither balances,
// masquerades, drops or removes anything for the other.
func TestKernelInstancesSideBySide(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	l := []*neighbour{k.neighbour("one", "10.96.0.11", "203.0.113.11"),
		k.neighbour("two", "10.96.0.12", "203.0.113.12")}
	requireFates := func(l ...*neighbour) {
		t.Helper()
		for _, n := range l {
			n.requireFate()
		}
	}

	// The second instance assigns its mark without having read the first instance's mark.
	l[1].apply(l[1].state(false))
	for _, n := range l {
		n.apply(n.state(true))
	}
	requireFates(l...)
	for _, n := range l {
		n.run("nft", "flush", "chain", "ip", n.table, "postrouting")
		n.muted = true
		requireFates(l...)
		n.muted = false
		n.apply(n.state(true))
		requireFates(l...)
	}

	ok(l[0].engine.Cleanup(t.Context()))(t)
	requireFates(l[1])
}

// Packets that two instances forward unchanged reach IPVS once, whichever instance sees a packet
// first.
func TestKernelInstancesRouteDirectly(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	l := []*neighbour{k.neighbour("one", "10.96.0.11", "203.0.113.11"),
		k.neighbour("two", "10.96.0.12", "203.0.113.12")}
	for _, n := range l {
		for _, p := range []string{"pod2", "pod3"} {
			n.holdAddresses(p, n.external)
		}
		n.apply(n.routedState(routed(sm.ForwardDirect, func(s *sm.Service) {
			s.ClusterIPs, s.ExternalIPs = nil, []netip.Addr{n.external}
			s.ExternalTrafficPolicy = sm.PolicyLocal
		}), []string{"pod2"}, []string{"pod3"}))
	}

	for _, n := range l {
		n.requireAnswers(n.external, []*netnstest.Host{k.Outside[0]}, "pod2")
		n.requireAnswers(n.external, []*netnstest.Host{k.Node}, "pod2", "pod3")
	}
}

// Connections through a virtual server of kube-proxy continue when the service takes it over, when
// kube-proxy's other objects are cleaned up, and when the service gets different endpoints.
func TestKernelConnectionsGoOnWhenKubeProxyIsReplaced(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{TakeOver: true})
	for _, name := range []string{"net/ipv4/vs/conntrack", "net/ipv4/ip_forward"} {
		require.NoError(t, k.Node.NS.SetSysctl(name, "1"))
	}
	k.run("ip", "link", "add", "kube-ipvs0", "type", "dummy")
	k.run("ip", "address", "add", webKey.Addr.String()+"/32", "dev", "kube-ipvs0")
	theirs := []ipvsnl.Op{ipvsnl.NewService(ipvsnl.Service{ServiceKey: webKey, Scheduler: "rr"})}
	for _, pod := range []string{"pod2", "pod3"} {
		theirs = append(theirs, ipvsnl.NewDestination(webKey, ipvsnl.Destination{Weight: 1,
			DestinationKey: ipvsnl.DestinationKey{Addr: k.pods[pod].IPv4, Port: 8080}}))
	}

	require.NoError(t, k.vs.Submit(t.Context(), theirs...))
	conns := k.hold()
	defer conns.Close()
	requireAlive(t, conns)

	k.engine = dataplane.New(k.backend, &dataplane.Config{Strict: true})
	k.apply(k.state(web(), "pod2", "pod3"))
	requireAlive(t, conns)
	plan := ok(kubeproxy.Cleanup(t.Context(), &kubeproxy.Config{NetNS: k.Node.NS.NetNS()}))(t)
	require.Equal(t, "kube-ipvs0", plan.Device)
	require.Empty(t, plan.VirtualServers)
	requireAlive(t, conns)
	more := k.hold()
	defer more.Close()
	k.apply(k.state(web(), "pod3")) // pod2 drains
	requireAlive(t, conns)
	requireAlive(t, more)
}

const newerNumber = `nft -f - << END
delete element ip kernlb-ipvs settings { 0x00000001 }
add element ip kernlb-ipvs settings { 0x00000001 comment "layout 1000" }
delete element ip6 kernlb-ipvs settings { 0x00000001 }
add element ip6 kernlb-ipvs settings { 0x00000001 comment "layout 1000" }
END
`

const newerObjects = `nft -f - << END
add element ip kernlb-ipvs settings { 0x00000063 comment "something new" }
add set ip kernlb-ipvs new { type ipv4_addr; elements = { 10.96.0.10 }; }
add chain ip kernlb-ipvs new
add rule ip kernlb-ipvs new ip daddr @new counter
insert rule ip kernlb-ipvs admit jump new
END
`

// older removes the layout number from the companion.
const older = `nft -f - << END
delete element ip kernlb-ipvs settings { 0x00000001 }
delete element ip6 kernlb-ipvs settings { 0x00000001 }
END
`

// A program takes over from an older program and from newer ones. The companion is replaced, and
// virtual servers stay.
func TestKernelUpgrade(t *testing.T) {
	t.Parallel()
	dataplanetest.Upgraded(t, underTest, dataplanetest.Layout{Name: "older", Edit: older},
		dataplanetest.Layout{Name: "newer by its number", Edit: newerNumber},
		dataplanetest.Layout{Name: "newer by its objects", Edit: newerNumber + newerObjects})
}

// Only clients in the source ranges reach a load-balancer IP that is an address of the node, even
// while the service is added and removed, and while everything is removed.
func TestKernelSourceRangesHoldOnAddressesOfTheNode(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	at := k.Node.IPv4
	only := func(s *sm.Service) {
		s.Ports = []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}
		s.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: at}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.PrefixFrom(k.Outside[0].IPv4, 32)}
	}

	with := k.state(web(only), "pod2", "pod3")
	without := sm.State{}.WithNode(sm.Node{Name: "this"})
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked, answered atomic.Int32
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				probe := netnstest.Probe{From: k.Outside[1], Proto: sm.TCP,
					To: netip.AddrPortFrom(at, 80), Timeout: 30 * time.Millisecond}
				if probe.Send(ctx).Kind == netnstest.Answered {
					answered.Add(1)
				}
				asked.Add(1)
			}
		})
	}

	for i := range 30 {
		k.apply(with)
		if i%10 == 0 {
			out := netnstest.Probe{From: k.Outside[0], Proto: sm.TCP,
				To: netip.AddrPortFrom(at, 80), Timeout: 5 * time.Second}.Send(t.Context())
			require.Equal(t, netnstest.Answered, out.Kind, out)
			ok(k.engine.Cleanup(t.Context()))(t)
		}

		k.apply(without)
	}

	stop()
	asking.Wait()
	require.Positive(t, asked.Load())
	require.Zero(t, answered.Load(), "of %d", asked.Load())
}

// Connections continue when conntrack forgets them, even if the endpoint then sends first.
func TestKernelConnectionsOutliveTheConntrackTable(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	const port = 9090
	svc := web()
	var endpoints []sm.Endpoint
	for _, a := range []netip.Addr{k.pods["pod2"].IPv4, k.pods["pod2"].IPv6} {
		endpoints = append(endpoints, sm.Endpoint{Addr: a,
			Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: port}}})
	}

	k.apply(k.state(svc).WithEndpoints(svc.Name, endpoints))
	for i, first := range []string{"endpoint", "client"} {
		for _, from := range []string{"pod1", "node"} {
			for family, vip := range webAddrs {
				host := k.Node
				if from != "node" {
					host = k.pods[from]
				}
				client, server := k.pair(host, netip.AddrPortFrom(vip, 80),
					netip.AddrPortFrom(endpoints[family].Addr, port))
				ways := [][2]net.Conn{{server, client}, {client, server}}
				require.NoError(t, say(t, client, server))
				time.Sleep(300 * time.Millisecond) // until no acknowledgement is due
				k.run("conntrack", "-F")
				k.run("conntrack", "-F", "-f", "ipv6")
				for range 3 {
					for j := range ways {
						way := ways[(i+j)%2]
						require.NoError(t, say(t, way[0], way[1]),
							"%s from %s, the %s is the first", vip, from, first)
					}
				}
			}
		}
	}
}

// say sends a few bytes from one end of a connection to the other.
func say(t *testing.T, from, to net.Conn) error {
	t.Helper()
	require.NoError(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := from.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := to.Read(make([]byte, 5))
	return err
}

// pair opens a connection from a host to the endpoint of a service, and listens in the endpoint's
// namespace.
func (k *kernel) pair(from *netnstest.Host, service, endpoint netip.AddrPort) (client,
	server net.Conn) {
	k.t.Helper()
	var l *net.TCPListener
	require.NoError(k.t, k.pods["pod2"].NS.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(endpoint))
		return err
	}))

	defer l.Close()
	require.NoError(k.t, from.NS.Do(func() (err error) {
		client, err = net.DialTimeout("tcp", service.String(), time.Minute)
		return err
	}))

	k.t.Cleanup(func() { client.Close() })
	require.NoError(k.t, l.SetDeadline(time.Now().Add(time.Minute)))
	server = ok(l.Accept())(k.t)
	k.t.Cleanup(func() { server.Close() })
	return client, server
}
