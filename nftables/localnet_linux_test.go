package nftables_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// localhost is a node with a service that is published at a loopback address.
type localhost struct {
	*netnstest.Cluster
	t       *testing.T
	backend backends.Backend
	engine  *dataplane.Engine
}

func newLocalhost(t *testing.T, c *netnstest.Cluster, table string) *localhost {
	t.Helper()
	b := ok(nftables.New(&nftables.Config{NetNS: c.Node.NS.NetNS(), Table: table}))(t)
	t.Cleanup(func() { b.Close() })
	return &localhost{Cluster: c, t: t, backend: b, engine: dataplane.New(b, nil)}
}

// state has a service at a node port and at 127.0.0.2:80. The client keeps its own source address
// if that is possible.
func (l *localhost) state(pods ...*netnstest.Host) servicemodel.State {
	svc := &servicemodel.Service{
		Name: servicemodel.Name{Namespace: "default", Name: "web"},
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80,
			NodePort: 30080}},
		HostIPs:    []netip.Addr{netip.MustParseAddr("127.0.0.2")},
		Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever),
	}
	var eps []servicemodel.Endpoint
	for _, p := range pods {
		eps = append(eps, servicemodel.Endpoint{Addr: p.IPv4,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return servicemodel.State{}.WithNode(servicemodel.Node{LocalhostNodePorts: true}).
		WithService(svc).WithEndpoints(svc.Name, eps)
}

func (l *localhost) apply(s servicemodel.State) *dataplane.Result {
	l.t.Helper()
	return ok(l.engine.Apply(l.t.Context(), s))(l.t)
}

func (l *localhost) dial(from *netnstest.Host, to string) netnstest.Outcome {
	return netnstest.Probe{From: from, Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort(to)}.Send(l.t.Context())
}

func (l *localhost) sysctl() string {
	l.t.Helper()
	return ok(l.Node.NS.Sysctl(routeLocalnet))(l.t)
}

// requireAnswers requires that the loopback addresses answer the host and no other client.
func (l *localhost) requireAnswers() {
	l.t.Helper()
	for _, to := range []string{"127.0.0.1:30080", "127.0.0.2:80"} {
		o := l.dial(l.Node, to)
		require.Equal(l.t, netnstest.Answered, o.Kind, "%s: %v", to, o)
		require.True(l.t, l.IsNodeAddr(o.Source.Addr()), "%s: masqueraded: %v", to, o)
		o = l.dial(l.Pods[0], to)
		require.Equal(l.t, netnstest.Dropped, o.Kind, "%s: %v", to, o)
	}
}

// newNeighbourly creates a network whose first pod sends packets for loopback addresses to the
// node.
func newNeighbourly(t *testing.T) *netnstest.Cluster {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	require.NoError(t, c.Pods[0].NS.SetSysctl(routeLocalnet, "1"))
	for _, a := range []string{"127.0.0.1", "127.0.0.2"} {
		if a == "127.0.0.1" {
			nstest.Run(t, c.Pods[0].NS, "ip route del table local local "+a)
		}
		nstest.Run(t, c.Pods[0].NS, fmt.Sprintf(
			"ip route add table local unicast %s/32 dev eth0 onlink via %s", a, c.Node.IPv4))
	}

	return c
}

// A service that is published at loopback addresses answers the node itself.
func TestPublishedAtLoopback(t *testing.T) {
	t.Parallel()
	c := newNeighbourly(t)
	l := newLocalhost(t, c, "")
	l.apply(l.state())
	for _, to := range []string{"127.0.0.1:30080", "127.0.0.2:80"} {
		require.Equal(t, netnstest.Refused, l.dial(c.Node, to).Kind, "no endpoints: %s", to)
	}
	l.apply(l.state(c.Pods[1]))
	l.requireAnswers()

	// Other hosts still cannot reach a program that listens only at loopback addresses.
	ok(c.Node.NS.Serve("local", servicemodel.TCP, netip.MustParseAddrPort("127.0.0.2:9090")))(t)
	require.Equal(t, "local", l.dial(c.Node, "127.0.0.2:9090").Server)
	require.Equal(t, netnstest.Dropped, l.dial(c.Pods[0], "127.0.0.2:9090").Kind)
	nstest.Run(t, c.Node.NS, "nft flush chain ip kernlb guard-loopback")
	require.Equal(t, "local", l.dial(c.Pods[0], "127.0.0.2:9090").Server, "it was the guard")
	require.NotEmpty(t, l.apply(l.state(c.Pods[1])).Drift)
	l.requireAnswers()

	// Another process adopts the instance, also as a part.
	again := newLocalhost(t, c, "")
	require.Zero(t, again.apply(l.state(c.Pods[1])).Stats.Messages)
	ok(dataplane.NewParts(newLocalhost(t, c, "").backend, nil).Apply(t.Context(), "pod-x",
		servicemodel.State{}))(t)

	// The tables are replaced, and keep the earlier value of the sysctl.
	nstest.Run(t, c.Node.NS, "nft delete set ip kernlb owner-hairpins")
	require.NotEmpty(t, again.apply(l.state(c.Pods[1])).Drift)
	ok(newLocalhost(t, c, "").engine.Cleanup(t.Context()))(t)
	require.Equal(t, "0", l.sysctl())
	again.apply(l.state(c.Pods[1]))

	// Another program turns the sysctl off.
	require.NoError(t, c.Node.NS.SetSysctl(routeLocalnet, "0"))
	require.Equal(t, []string{"sysctl net.ipv4.conf.all.route_localnet is 0"},
		again.apply(l.state(c.Pods[1])).Drift)
	l.requireAnswers()
}

// The sysctl returns to its earlier value when it is no longer needed, for any reason, unless
// another program relies on it.
func TestRouteLocalnetIsRestored(t *testing.T) {
	t.Parallel()
	c := newNeighbourly(t)
	l, other := newLocalhost(t, c, ""), newLocalhost(t, c, "other")
	without := func() error {
		_, err := l.engine.Apply(t.Context(), l.state(c.Pods[1]).WithNode(servicemodel.Node{}))
		return err
	}

	anew := func(edit string) func() error {
		return func() error {
			nstest.Run(t, c.Node.NS, edit)
			_, err := newLocalhost(t, c, "").engine.Apply(t.Context(),
				l.state(c.Pods[1]).WithNode(servicemodel.Node{}))
			return err
		}
	}

	for name, end := range map[string]func() error{
		"the option goes": without,
		"the rules are flushed, and written again before the option goes": func() error {
			nstest.Run(t, c.Node.NS, "nft flush ruleset")
			l.apply(l.state(c.Pods[1]))
			return without()
		},
		"the rules are flushed, and the option goes": func() error {
			nstest.Run(t, c.Node.NS, "nft flush ruleset")
			return without()
		},
		"the rules are flushed, and everything goes": func() error {
			nstest.Run(t, c.Node.NS, "nft flush ruleset")
			_, err := l.engine.Cleanup(t.Context())
			return err
		},
		"a new process does not need it, and a set is missing": anew(
			"nft delete set ip kernlb owner-hairpins"),
		"a new process does not need it, and the layout is missing": anew(
			"nft delete element ip kernlb settings { 0x00000001 }"),
		"the address goes": func() error {
			node := servicemodel.Node{LocalhostNodePorts: true}
			node.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			_, err := l.engine.Apply(t.Context(), l.state(c.Pods[1]).WithNode(node))
			return err
		},
		"everything goes": func() error {
			_, err := l.engine.Cleanup(t.Context())
			return err
		},
	} {
		for _, before := range []string{"0", "1"} {
			require.NoError(t, c.Node.NS.SetSysctl(routeLocalnet, before))
			l.apply(l.state(c.Pods[1]))
			require.Equal(t, "1", l.sysctl())
			require.NoError(t, end())
			require.Equal(t, before, l.sysctl(), "%s; it was %s", name, before)
			require.Equal(t, netnstest.Refused, l.dial(c.Node, "127.0.0.1:30080").Kind)
		}
	}

	for _, before := range []string{"0", "1"} {
		require.NoError(t, c.Node.NS.SetSysctl(routeLocalnet, before))
		l.apply(l.state(c.Pods[1]))
		other.apply(onlyLocalhost)
		require.NoError(t, without())
		require.Equal(t, "1", l.sysctl(), "another instance has a guard")
		ok(other.engine.Cleanup(t.Context()))(t)
		require.Equal(t, before, l.sysctl(), "the last one that goes restores it")
	}
}

// onlyLocalhost is a state without services that needs a guard.
var onlyLocalhost = servicemodel.State{}.WithNode(servicemodel.Node{LocalhostNodePorts: true,
	ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}})

// Instances of nftables and iptables recognize each other's guards. The last instance that is
// removed turns the sysctl off. A chain with the name of a guard but without its rule does not
// count as a guard.
func TestBackendsShareRouteLocalnet(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.Run(t, ns, "iptables-nft -N X-FIREWALL")
	nstest.Run(t, ns, "iptables-nft -A X-FIREWALL -j RETURN")
	value := func() string { return ok(ns.Sysctl(routeLocalnet))(t) }
	n := ok(nftables.New(&nftables.Config{NetNS: ns.NetNS()}))(t)
	defer n.Close()
	i := ok(iptables.New(&iptables.Config{NetNS: ns.NetNS()}))(t)
	defer i.Close()
	for _, order := range [][]backends.Backend{{n, i}, {i, n}} {
		for _, b := range order {
			ok(dataplane.New(b, nil).Apply(t.Context(), onlyLocalhost))(t)
			require.Equal(t, "1", value())
		}

		for _, b := range order {
			require.Equal(t, "1", value())
			ok(dataplane.New(b, nil).Cleanup(t.Context()))(t)
		}

		require.Equal(t, "0", value())
	}
}
