package ipvs_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// kernel is a network with an engine on its node.
type kernel struct {
	*netnstest.Cluster
	t       *testing.T
	backend backends.Backend
	engine  *dataplane.Engine
	vs      *ipvsnl.Client
	pods    map[string]*netnstest.Host
}

func newKernel(t *testing.T, cfg ipvs.Config) *kernel {
	t.Helper()
	needIPVS(t)
	c := netnstest.Start(t, netnstest.Options{})
	k := &kernel{Cluster: c, t: t, pods: map[string]*netnstest.Host{}}
	for _, h := range c.Pods {
		require.NoError(t, h.Serve(sm.TCP, 8080))
		k.pods[h.Name] = h
	}

	k.restart(cfg)
	k.vs = ok(ipvsnl.Dial(t.Context(), &rawnl.Config{NetNS: c.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { k.vs.Close() })
	return k
}

// restart creates a new backend and engine without any memory.
func (k *kernel) restart(cfg ipvs.Config) {
	k.t.Helper()
	cfg.NetNS = k.Node.NS.NetNS()
	b := ok(ipvs.New(&cfg))(k.t)
	k.t.Cleanup(func() { b.Close() })
	k.backend, k.engine = b, dataplane.New(b, nil)
}

var (
	webAddrs = []netip.Addr{netip.MustParseAddr("10.96.0.10"),
		netip.MustParseAddr("fd00:10:96::10")}
	webKey = ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(webAddrs[0], 80))
)

func web(edit ...func(*sm.Service)) *sm.Service {
	s := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"}, ClusterIPs: webAddrs,
		Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80, NodePort: 30080}}}
	for _, f := range edit {
		f(s)
	}
	return s
}

func (k *kernel) state(svc *sm.Service, pods ...string) sm.State {
	var l []sm.Endpoint
	for _, p := range pods {
		for _, a := range []netip.Addr{k.pods[p].IPv4, k.pods[p].IPv6} {
			l = append(l, sm.Endpoint{Addr: a, Node: "this",
				Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}})
		}
	}

	return sm.State{}.WithNode(sm.Node{Name: "this"}).WithService(svc).WithEndpoints(svc.Name, l)
}

func (k *kernel) apply(s sm.State) *dataplane.Result {
	k.t.Helper()
	return ok(k.engine.Apply(k.t.Context(), s))(k.t)
}

func (k *kernel) run(args ...string) string {
	k.t.Helper()
	return nstest.Exec(k.t, k.Node.NS, "", args...)
}

// weights returns the weights of a virtual server's destinations by pod.
func (k *kernel) weights(key ipvsnl.ServiceKey) map[string]int {
	k.t.Helper()
	list := ok(k.vs.Destinations(k.t.Context(), key))(k.t)
	m := map[string]int{}
	for _, d := range list {
		for name, p := range k.pods {
			if p.IPv4 == d.Addr {
				m[name] = int(d.Weight)
			}
		}
	}

	require.Len(k.t, m, len(list))
	return m
}

// hold opens connections to the service, and requires that both pods get connections.
func (k *kernel) hold() *netnstest.Conns {
	k.t.Helper()
	conns := ok(netnstest.OpenConns(k.t.Context(), k.pods["pod1"], netip.AddrPortFrom(webAddrs[0],
		80), heldConns))(k.t)
	k.t.Cleanup(func() { conns.Close() })
	require.Equal(k.t, []string{"pod2", "pod3"}, slices.Sorted(maps.Keys(conns.Servers())))
	return conns
}

const heldConns = 20

// requireAlive requires that every connection is alive.
func requireAlive(t *testing.T, conns *netnstest.Conns) {
	t.Helper()
	r := conns.Ping(time.Minute)
	require.Equal(t, heldConns, r.Answered, r.Errors)
	require.Zero(t, r.Lost())
}

func TestKernelDrainsConnections(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	k.apply(k.state(web(), "pod2", "pod3"))
	conns := k.hold()

	// A scale-down, and a scale-up.
	k.apply(k.state(web(), "pod3"))
	require.Equal(t, map[string]int{"pod2": 0, "pod3": 1}, k.weights(webKey))
	requireAlive(t, conns)
	next := ok(k.engine.Settle(t.Context()))(t)
	require.Positive(t, next)
	require.Contains(t, k.weights(webKey), "pod2")
	k.apply(k.state(web(), "pod2", "pod3"))
	require.Equal(t, map[string]int{"pod2": 1, "pod3": 1}, k.weights(webKey))
	requireAlive(t, conns)

	// A different scheduler while one endpoint drains, and a new process, which writes nothing.
	least := func(s *sm.Service) { s.Scheduler = sm.LeastConn }
	k.apply(k.state(web(), "pod3"))
	k.apply(k.state(web(least), "pod3"))
	require.Equal(t, map[string]int{"pod2": 0, "pod3": 1}, k.weights(webKey))
	requireAlive(t, conns)
	k.restart(ipvs.Config{})
	r := k.apply(k.state(web(least), "pod3"))
	require.Zero(t, r.Stats.Messages)
	require.Empty(t, r.Drift)
	require.Equal(t, map[string]int{"pod2": 0, "pod3": 1}, k.weights(webKey))
	requireAlive(t, conns)

	// The connections end. IPVS remembers a reset for ten seconds.
	require.NoError(t, conns.Close())
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		next := ok(k.engine.Settle(t.Context()))(t)
		if next == 0 {
			break
		}
		require.True(t, time.Now().Before(end), "still drains: %v", k.weights(webKey))
	}

	require.Equal(t, map[string]int{"pod3": 1}, k.weights(webKey))
}

func TestKernelCutsOffWhatDoesNotDrain(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	k := newKernel(t, ipvs.Config{DrainLimit: limit})
	k.apply(k.state(web(), "pod2", "pod3"))
	conns := k.hold()
	k.apply(k.state(web(), "pod3"))
	time.Sleep(limit)
	next := ok(k.engine.Settle(t.Context()))(t)
	require.Zero(t, next)
	require.Equal(t, map[string]int{"pod3": 1}, k.weights(webKey))
	r := conns.Ping(time.Minute)
	require.Equal(t, conns.Servers()["pod3"], r.Answered)
	require.Equal(t, conns.Servers()["pod2"], r.Reset, r.Errors)
}

func TestKernelCleanupLeavesNothing(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{Device: testDevice, StrictARP: true})
	names := []string{"net/ipv4/vs/conntrack", "net/ipv4/vs/expire_nodest_conn",
		"net/ipv4/vs/expire_quiescent_template", "net/ipv4/ip_forward",
		"net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"}
	for _, n := range names {
		require.NoError(t, k.Node.NS.SetSysctl(n, "0"))
	}
	look := func() (all []string) {
		for _, c := range []string{"nft list ruleset", "ipvsadm -Sn", "ip rule", "ip -6 rule",
			"ip route show table all", "ip -6 route show table all", "ip link", "ip address"} {
			all = append(all, k.run(strings.Fields(c)...))
		}

		for _, n := range names {
			v := ok(k.Node.NS.Sysctl(n))(t)
			all = append(all, n+" "+v)
		}

		return all
	}

	before := look()
	local := func(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal }
	k.apply(k.state(web(local), "pod2", "pod3"))
	require.NotContains(t, look(), "net/ipv4/ip_forward 0")
	k.restart(ipvs.Config{}) // it finds the earlier values of sysctls in the kernel
	ok(k.engine.Cleanup(t.Context()))(t)
	require.Equal(t, before, look())
}

// The kernel refuses a broadcast address of the node as an endpoint. Only the service of this
// endpoint waits until the node has different addresses.
func TestKernelRefusesBroadcastAddresses(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	bad := web(func(s *sm.Service) {
		s.Name.Name, s.ClusterIPs = "bad", []netip.Addr{netip.MustParseAddr("10.96.0.66")}
		s.Ports[0].NodePort = 0
	})
	broadcast := netip.MustParseAddr("198.18.7.255")
	state := k.state(web(), "pod2").WithService(bad).WithEndpoints(bad.Name, []sm.Endpoint{{
		Addr:  broadcast,
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}})
	k.run("ip", "link", "add", "seven", "type", "dummy")
	k.run("ip", "link", "set", "seven", "up")
	k.run("ip", "address", "add", "198.18.7.1/24", "brd", "+", "dev", "seven")

	for range 2 {
		r := k.apply(state)
		require.Len(t, r.Refused, 1)
		require.ErrorContains(t, r.Refused[0].Err, "is a broadcast address of this node")
		require.Equal(t, map[string]int{"pod2": 1}, k.weights(webKey))
		k.engine.Resync()
	}

	k.run("ip", "address", "del", "198.18.7.1/24", "dev", "seven")
	require.Empty(t, k.apply(state).Refused)
	require.Contains(t, k.run("ipvsadm", "-Sn"), "-r 198.18.7.255:8080")
}

// Clients that agree in the leading bits of their addresses share an endpoint. A process with a
// different configuration changes this, and still recognizes the services.
func TestKernelAffinityOfPrefixes(t *testing.T) {
	t.Parallel()
	cfg := ipvs.Config{AffinityMask4: 24, AffinityMask6: 64}
	k := newKernel(t, cfg)
	s := k.state(web(func(s *sm.Service) {
		s.SessionAffinity.ClientIP = true
	}), "pod2", "pod3")
	k.apply(s)
	servers := func(n int) map[string]bool {
		m := map[string]bool{}
		for i := range n {
			// These addresses belong to the client's host.
			for _, from := range []netip.Addr{k.Outside[0].IPv4, k.Outside[1].IPv4} {
				out := netnstest.Probe{From: k.Outside[0], Proto: sm.TCP, SourceAddr: from,
					To: netip.AddrPortFrom(webAddrs[0], 80), Timeout: 5 * time.Second}.Send(
					t.Context())
				require.Equal(t, netnstest.Answered, out.Kind, "%d: %v", i, out)
				m[out.Server] = true
			}
		}

		return m
	}

	require.Len(t, servers(4), 1)
	require.Contains(t, k.run("ipvsadm", "-Sn"),
		"-A -t 10.96.0.10:80 -s wrr -p 10800 -M 255.255.255.0")
	require.Contains(t, k.run("ipvsadm", "-Sn"), "-A -t [fd00:10:96::10]:80 -s wrr -p 10800 -M 64")

	k.restart(cfg)
	r := k.apply(s)
	require.Empty(t, r.Drift)
	require.Zero(t, r.Stats.Messages)
	k.restart(ipvs.Config{})
	o := ok(k.engine.Observe(t.Context()))(t)
	require.NotEmpty(t, o.Drift)
	require.Equal(t, 4, o.Table.Len())
	r = k.apply(s)
	require.True(t, r.Changes.Empty())
	require.Positive(t, r.Stats.Messages)
	require.NotContains(t, k.run("ipvsadm", "-Sn"), "-M")
	require.Zero(t, k.apply(s).Stats.Messages)
	require.Len(t, servers(4), 2, "each client for itself")
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// ipvsadm shows each scheduler with its options. A new program finds the scheduler, and has nothing
// to do.
func TestKernelHasEachScheduler(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	for want, text := range map[sm.Scheduler]string{
		"":     "-s wrr",
		"rr":   "-s rr",
		"wlc":  "-s wlc",
		"lblc": "-s lblc", "lblcr": "-s lblcr",
		"dh":  "-s dh",
		"sed": "-s sed", "nq": "-s nq", "fo": "-s fo", "ovf": "-s ovf",
		"sh":               "-s sh",
		"sh+port":          "-s sh -b sh-port",
		"mh+fallback":      "-s mh -b mh-fallback",
		"mh+port+fallback": "-s mh -b mh-fallback,mh-port",
	} {
		s := k.state(web(func(s *sm.Service) { s.Scheduler = want }), "pod2", "pod3")
		k.apply(s)
		require.Contains(t, k.run("ipvsadm", "-Sn"), "-A -t 10.96.0.10:80 "+text+"\n")
		k.restart(ipvs.Config{})
		r := k.apply(s)
		require.Zero(t, r.Counts.Added+r.Counts.Changed+r.Counts.Removed, "%q", want)
		require.Zero(t, r.Stats.Messages, "%q", want)
	}
}

// IPVS counts the traffic of clients, at cluster IPs and node ports, even after the endpoint is
// removed. conntrack has the same connections.
func TestKernelCounts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	held := k.apply(k.state(web(), "pod2")).Changes.New
	source := ok(ipvs.OpenCounters(&ipvs.Config{NetNS: k.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { require.NoError(t, source.Close()) })
	nodePort := sm.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: sm.TCP, Port: 30080}
	clusterIP := sm.FrontendKey{Addr: webAddrs[0], Protocol: sm.TCP, Port: 80}
	node := netip.MustParseAddr(netnstest.Net.NodeIPv4)
	for to, n := range map[netip.AddrPort]int{netip.AddrPortFrom(clusterIP.Addr, clusterIP.Port): 3,
		netip.AddrPortFrom(node, 30080): 2} {
		for range n {
			got := netnstest.Probe{From: k.pods["pod1"], Proto: sm.TCP, To: to}.Send(t.Context())
			require.Equal(t, netnstest.Answered, got.Kind, got)
		}
	}

	pod2 := netip.AddrPortFrom(k.pods["pod2"].IPv4, 8080)
	here := sm.Locality{node}
	var s *counters.Sums
	require.Eventually(t, func() bool { // the kernel updates counters every two seconds
		r := ok(source.Read(t.Context()))(t)
		s = r.Of(held, here)
		return s.Frontend(clusterIP).Connections == 3 && s.Frontend(nodePort).Connections == 2 &&
			s.Endpoint(clusterIP, pod2) == s.Frontend(clusterIP)
	}, time.Minute, 100*time.Millisecond)

	v := s.Endpoint(nodePort, pod2)
	require.Equal(t, uint64(2), v.Connections)
	for _, n := range []uint64{v.PacketsIn, v.PacketsOut, v.BytesIn, v.BytesOut} {
		require.NotZero(t, n, v)
	}

	held = k.apply(k.state(web(), "pod3")).Changes.New
	r := ok(source.Read(t.Context()))(t)
	s = r.Of(held, here)
	require.Equal(t, uint64(3), s.Frontend(clusterIP).Connections)
	require.Zero(t, s.Endpoint(clusterIP, netip.AddrPortFrom(k.pods["pod3"].IPv4, 8080)))

	table := ok(conntrack.Open(&conntrack.Config{NetNS: k.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	r = ok(flows.Counters{Table: table}.Read(t.Context()))(t)
	require.Equal(t, uint64(3), r.Of(held, here).Endpoint(clusterIP, pod2).Connections)
}
