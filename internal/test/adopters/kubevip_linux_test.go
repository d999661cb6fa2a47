package adopters

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	vip     = "203.0.113.1:6443"
	apiPort = 6443
)

var apiServers = servicemodel.Name{Namespace: "kube-vip", Name: "apiserver"}

// controlPlanes is the state of a manager of virtual addresses on the node that has the address.
func controlPlanes(nodes ...*netnstest.Host) servicemodel.State {
	var l []servicemodel.Endpoint
	for _, n := range nodes {
		l = append(l, endpoint(n.IPv4, servicemodel.TCP, apiPort))
	}
	return servicemodel.State{}.WithService(&servicemodel.Service{
		Name:            apiServers,
		Ports:           []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: apiPort}},
		LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: netip.MustParseAddr("203.0.113.1")}},
		Scheduler:       servicemodel.RoundRobin,
		Masquerade:      servicemodel.MasqueradeAt(servicemodel.MasqueradeAlways),
	}).WithEndpoints(apiServers, l)
}

// names returns the names of hosts, sorted.
func names(hosts ...*netnstest.Host) (l []string) {
	for _, h := range hosts {
		l = append(l, h.Name)
	}
	slices.Sort(l)
	return l
}

// kubeVIP is a node with the virtual address, two more control planes, and a control plane that
// joins later.
type kubeVIP struct {
	*netnstest.Cluster
	planes  []*netnstest.Host
	servers []*netnstest.Server
	engine  *dataplane.Engine
}

func newKubeVIP(t *testing.T) *kubeVIP {
	t.Helper()
	c := &kubeVIP{Cluster: netnstest.Start(t, netnstest.Options{})}
	c.planes = []*netnstest.Host{c.Node, c.OtherNode, c.RemotePods[0], c.Pods[0]}
	for i := range c.planes {
		c.servers = append(c.servers, c.serve(t, i))
	}
	require.NoError(t, c.Node.NS.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("203.0.113.1/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, addr)
	}))

	c.engine = dataplane.New(opened(t, c.Node.NS.NetNS(), "kube-vip"), nil)
	return c
}

func (c *kubeVIP) serve(t *testing.T, plane int) *netnstest.Server {
	t.Helper()
	h := c.planes[plane]
	s, err := h.NS.Serve(h.Name, servicemodel.TCP, netip.AddrPortFrom(h.IPv4, apiPort))
	require.NoError(t, err)
	return s
}

// requireTurns requires that clients everywhere reach exactly these hosts in turn. Hosts other than
// the node see an address of the node.
func (c *kubeVIP) requireTurns(t *testing.T, want ...*netnstest.Host) {
	t.Helper()
	for _, from := range []*netnstest.Host{c.Outside[0], c.Pods[1], c.Node} {
		var got []string
		for range want {
			o := send(t, from, servicemodel.TCP, vip)
			if o.Server != c.Node.Name { // its answers come back whoever the client is
				require.True(t, c.IsNodeAddr(o.Source.Addr()), o)
			}
			got = append(got, o.Server)
		}

		slices.Sort(got)
		require.Equal(t, names(want...), got, "from %s", from.Name)
	}
}

func TestKubeVIPsControlPlanesComeAndGo(t *testing.T) {
	t.Parallel()
	c := newKubeVIP(t)
	apply(t, c.engine, controlPlanes(c.planes[:3]...))
	c.requireTurns(t, c.planes[:3]...)
	conns, err := netnstest.OpenConns(t.Context(), c.Outside[0], netip.MustParseAddrPort(vip), 30)
	require.NoError(t, err)
	defer conns.Close()
	require.Len(t, conns.Servers(), 3)

	apply(t, c.engine, controlPlanes(c.planes...)) // one joins
	c.requireTurns(t, c.planes...)
	rest := []*netnstest.Host{c.planes[0], c.planes[2], c.planes[3]}
	apply(t, c.engine, controlPlanes(rest...)) // one is removed, and serves its connections on
	c.requireTurns(t, rest...)
	require.Zero(t, conns.Ping(time.Minute).Lost())

	_, err = c.engine.Cleanup(t.Context()) // another node becomes the leader
	require.NoError(t, err)
	got := netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort(vip)}.Send(t.Context())
	require.Equal(t, netnstest.Refused, got.Kind, got)
}

// A control plane that is killed gets no connections after some checks, and gets them again when it
// is back.
func TestKubeVIPsControlPlaneIsKilled(t *testing.T) {
	t.Parallel()
	c := newKubeVIP(t)
	changed := make(chan checks.Report, 100)
	follower, err := checks.NewFollower(func(s servicemodel.State) { c.engine.Set(s) },
		&checks.Config{NetNS: c.Node.NS.NetNS(), Changed: func(r checks.Report) { changed <- r }})
	require.NoError(t, err)
	require.NoError(t, follower.Set(controlPlanes(c.planes[:3]...),
		map[servicemodel.Name][]checks.Check{apiServers: {{Type: checks.TCP,
			Interval: 50 * time.Millisecond, Retry: 20 * time.Millisecond, Rise: 1}}}, nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- c.engine.Run(ctx, nil) }()
	go func() { ended <- follower.Run(ctx) }()
	await := func(n int, want checks.State) {
		t.Helper()
		for range n {
			select {
			case r := <-changed:
				require.Equal(t, want, r.State, r.Target)
			case <-time.After(time.Minute):
				t.Fatal("no check has changed")
			}
		}
	}

	serving := func(want ...*netnstest.Host) {
		t.Helper()
		require.Eventually(t, func() bool {
			s := c.engine.Status()
			if s.Pending() || s.Held == nil {
				return false
			}
			n := 0
			for p := range s.Held.Pools() {
				n += len(p.Slots)
			}
			return n == len(want)
		}, time.Minute, time.Millisecond)

		c.requireTurns(t, want...)
	}

	await(3, checks.Up)
	serving(c.planes[:3]...)
	require.NoError(t, c.servers[1].Close())
	await(1, checks.Down)
	serving(c.planes[0], c.planes[2])
	c.servers[1] = c.serve(t, 1)
	await(1, checks.Up)
	serving(c.planes[:3]...)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}

// The instance exists next to the chains of a kube-proxy in mode iptables. Neither is affected when
// the other is created, changed and removed.
func TestKubeVIPStandsBesideKubeProxy(t *testing.T) {
	t.Parallel()
	c := newKubeVIP(t)
	proxies, err := iptables.New(&iptables.Config{NetNS: c.Node.NS.NetNS()})
	require.NoError(t, err)
	defer proxies.Close()
	proxy := dataplane.New(proxies, nil)
	name := servicemodel.Name{Namespace: "default", Name: "kubernetes"}
	inside := servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 443}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
	}).WithEndpoints(name, []servicemodel.Endpoint{
		endpoint(c.planes[1].IPv4, servicemodel.TCP, apiPort)})
	meets := func() {
		t.Helper()
		got := send(t, c.Pods[1], servicemodel.TCP, "10.96.0.1:443")
		require.Equal(t, c.planes[1].Name, got.Server)
	}

	apply(t, proxy, inside)
	apply(t, c.engine, controlPlanes(c.planes[:3]...))
	meets()
	c.requireTurns(t, c.planes[:3]...)
	apply(t, proxy, inside.WithoutService(name).WithEndpoints(name, nil))
	c.requireTurns(t, c.planes[:3]...)
	apply(t, proxy, inside)
	apply(t, c.engine, controlPlanes(c.planes...))
	meets()
	c.requireTurns(t, c.planes...)
	_, err = c.engine.Cleanup(t.Context())
	require.NoError(t, err)
	meets()

	r, err := proxy.Apply(t.Context(), inside)
	require.NoError(t, err)
	require.True(t, r.Changes.Empty(), "%s", r.Changes)
	require.Empty(t, r.Drift)
}
