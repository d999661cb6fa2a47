package counters

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	ips   = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}
	nodes = []netip.Addr{netip.MustParseAddr(netnstest.Net.NodeIPv4),
		netip.MustParseAddr(netnstest.Net.NodeIPv6)}
)

// web is a service with endpoints at these hosts.
func web(hosts ...*netnstest.Host) servicemodel.State {
	svc := &servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: ips}
	var eps []servicemodel.Endpoint
	for _, p := range netnstest.Protocols() {
		svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: p.String(),
			Protocol: servicemodel.Protocol(p), Port: 80, NodePort: 30080})
	}

	for _, h := range hosts {
		for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
			e := servicemodel.Endpoint{Addr: a, Node: "this"}
			for _, p := range svc.Ports {
				e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: p.Name,
					Protocol: p.Protocol, Port: 8080})
			}

			eps = append(eps, e)
		}
	}

	return servicemodel.State{}.WithNode(servicemodel.Node{Name: "this", Addresses: nodes}).
		WithService(svc).WithEndpoints(svc.Name, eps)
}

// Each packet of a service is counted once, from every client and on every path. The counters are
// switched on and off while connections are open, and change no other object.
func TestCounted(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{nftables.Name, iptables.Name} {
		for _, where := range []string{"pod", "host"} {
			t.Run(backend+" "+where, func(t *testing.T) {
				t.Parallel()
				testCounted(t, backend, where)
			})
		}
	}
}

func testCounted(t *testing.T, backend, where string) {
	c := netnstest.Start(t, netnstest.Options{})
	server := c.Pods[0]
	if where == "host" {
		server = c.Node
	}
	for _, p := range netnstest.Protocols() {
		require.NoError(t, server.Serve(p, 8080))
	}
	b := must.OK(open(backend, c.Node.NS.NetNS()))(t)
	defer b.Close()
	r := must.OK(dataplane.New(b, nil).Apply(t.Context(), web(server)))(t)
	table := r.Changes.New

	conns := must.OK(netnstest.OpenConns(t.Context(), c.Pods[1],
		netip.AddrPortFrom(ips[0], 80), 3))(t)
	defer conns.Close()
	count := must.OK(Open(&Config{NetNS: c.Node.NS.NetNS()}))(t)
	defer count.Close()
	_, err := count.Read(t.Context())
	require.ErrorIs(t, err, ErrOff)
	require.NoError(t, count.Start(t.Context()))
	require.Zero(t, conns.Ping(time.Minute).Lost())
	require.NoError(t, count.Start(t.Context()), "it goes on")
	nstest.Run(t, c.Node.NS, "nft delete table ip6 "+defaultTable)
	_, err = count.Read(t.Context())
	require.ErrorIs(t, err, ErrOff)
	require.NoError(t, count.Start(t.Context()), "a family that another program switched off")
	sums := read(t, count, table)
	old := sums.Frontend(servicemodel.FrontendKey{Addr: ips[0], Protocol: servicemodel.TCP,
		Port: 80})
	require.Zero(t, old.Connections, "they began before")
	require.GreaterOrEqual(t, old.PacketsIn, uint64(3))
	require.GreaterOrEqual(t, old.PacketsOut, uint64(3))

	for _, from := range []*netnstest.Host{c.Pods[1], c.Outside[0], c.Node} {
		for i, ip := range ips {
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(ip, 80),
				netip.AddrPortFrom(nodes[i], 30080)} {
				for _, p := range []servicemodel.Protocol{servicemodel.UDP, servicemodel.SCTP} {
					checkCounted(t, count, table, from, p, to, server)
				}
			}
		}
	}

	out := nftList(t, c)
	require.Contains(t, out, "update @requests")
	require.NoError(t, count.Stop(t.Context()))
	require.NoError(t, count.Stop(t.Context()), "it is off")
	require.NotContains(t, nftList(t, c), defaultTable)
	require.Zero(t, conns.Ping(time.Minute).Lost())
}

// checkCounted sends a packet, gets an answer, and requires that both were counted.
func checkCounted(t *testing.T, count *Counters, table *servicemodel.Table, from *netnstest.Host,
	p servicemodel.Protocol, to netip.AddrPort, server *netnstest.Host) {
	t.Helper()
	k := servicemodel.FrontendKey{Addr: to.Addr(), Protocol: servicemodel.Protocol(p),
		Port: to.Port()}
	if k.Port != 80 {
		k.Addr = map[bool]netip.Addr{true: netip.IPv4Unspecified(),
			false: netip.IPv6Unspecified()}[k.Addr.Is4()]
	}

	e := netip.AddrPortFrom(server.Addr(to.Addr()), 8080)
	before := read(t, count, table)
	got := netnstest.Probe{From: from, Proto: p, To: to}.Send(t.Context())
	require.Equal(t, netnstest.Answered, got.Kind, "%v", got)
	after := read(t, count, table)
	size := before.Frontend(k)
	require.Equal(t, after.Frontend(k), after.Endpoint(k, e))
	now := after.Frontend(k)
	require.Equal(t, size.Connections+1, now.Connections, "%v from %s to %v", p, from.Name, to)
	require.Equal(t, size.PacketsIn+1, now.PacketsIn, "%v from %s to %v", p, from.Name, to)
	require.Equal(t, size.PacketsOut+1, now.PacketsOut, "%v from %s to %v", p, from.Name, to)
	require.Greater(t, now.BytesIn, size.BytesIn+20)
	require.Greater(t, now.BytesOut, size.BytesOut+20)
}

func open(backend string, ns netns.Namespace) (backends.Backend, error) {
	if backend == iptables.Name {
		return iptables.New(&iptables.Config{NetNS: ns})
	}
	return nftables.New(&nftables.Config{NetNS: ns})
}

func read(t *testing.T, c *Counters, table *servicemodel.Table) *Sums {
	t.Helper()
	r := must.OK(c.Read(t.Context()))(t)
	require.False(t, r.Full)
	return r.Of(table, nodes)
}

// nftList lists the ruleset.
func nftList(t *testing.T, c *netnstest.Cluster) string {
	t.Helper()
	return nstest.Run(t, c.Node.NS, "nft list ruleset")
}

// If a set is full, its existing pairs are still counted.
func TestFull(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[0].Serve(servicemodel.UDP, 8080))
	b := must.OK(open(nftables.Name, c.Node.NS.NetNS()))(t)
	defer b.Close()
	must.OK(dataplane.New(b, nil).Apply(t.Context(), web(c.Pods[0])))(t)
	count := must.OK(Open(&Config{NetNS: c.Node.NS.NetNS(), Table: "few"}))(t)
	defer count.Close()
	count.size = 1
	require.NoError(t, count.Start(t.Context()))
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(ips[0], 80),
		netip.AddrPortFrom(nodes[0], 30080), netip.AddrPortFrom(ips[0], 80)} {
		got := netnstest.Probe{From: c.Pods[1], Proto: servicemodel.UDP, To: to}.Send(t.Context())
		require.Equal(t, netnstest.Answered, got.Kind, got)
	}

	r := must.OK(count.Read(t.Context()))(t)
	require.True(t, r.Full)
	require.Len(t, r.Pairs, 1)
	for p, v := range r.Pairs {
		require.Equal(t, netip.AddrPortFrom(ips[0], 80), p.Dst)
		require.Equal(t, uint64(2), v.Connections)
	}
}

// A kernel without one family counts the other family.
func TestAKernelWithoutAFamily(t *testing.T) {
	t.Parallel()
	for _, lacks := range nft.Families {
		t.Run(lacks.Name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			kernel := &rawnltest.Tap{Request: func(request []rawnltest.Message) {
				for _, m := range request {
					if m.Body[0] == lacks.NFProto {
						m.Body[0] = 99
					}
				}
			}}
			conn := must.OK(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS(), Wrap: func(
				s rawnl.Socket) rawnl.Socket {
				return kernel.Wrap(s)
			}}))(t)
			defer conn.Close()
			c := &Counters{conn: conn, table: defaultTable, size: setSize}
			_, err := c.Read(t.Context())
			require.ErrorIs(t, err, ErrOff)
			require.NoError(t, c.Start(t.Context()))
			require.Len(t, strings.Fields(nstest.Run(t, ns, "nft list tables")), 3)
			_, err = c.Read(t.Context())
			require.NoError(t, err)
			require.NoError(t, c.Stop(t.Context()))
			require.Empty(t, nstest.Run(t, ns, "nft list tables"))
		})
	}
}

// Decoding elements never panics, whatever the kernel sends.
func FuzzElements(f *testing.F) {
	f.Fuzz(func(_ *testing.T, attrs []byte) {
		r := &Reading{Pairs: map[Pair]Values{}}
		_ = nft.DecodeElements(attrs, func(e nft.Elem) error {
			for _, family := range nft.Families {
				r.add(family, setRequests, e)
			}
			return nil
		})
	})
}

// After another program has flushed the whole ruleset, the counters are restored with the services,
// with the code in the package documentation.
func TestCountersComeBackWithTheServices(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	b := must.OK(open(nftables.Name, ns.NetNS()))(t)
	defer b.Close()
	engine := dataplane.New(b, nil)
	count := must.OK(Open(&Config{NetNS: ns.NetNS()}))(t)
	defer count.Close()
	require.NoError(t, count.Start(t.Context()))
	engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if _, ok := ev.(dataplane.Repaired); ok {
			require.NoError(t, count.Start(ctx))
		}
	})

	state := servicemodel.State{}.WithNode(servicemodel.Node{Name: "this", Addresses: nodes})
	must.OK(engine.Apply(t.Context(), state))(t)
	must.OK(count.Read(t.Context()))(t)

	nstest.Run(t, ns, "nft flush ruleset")
	must.OK(engine.Apply(t.Context(), state))(t)
	must.OK(count.Read(t.Context()))(t)
}
