package adopters

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// forward is a listen address of a network. Its ports reach the same ports of a target.
type forward struct {
	listen string
	ports  []uint16
	end    uint16 // if not zero, the last port is the first of a range
	target *netnstest.Host
	source bool // the target sees the listen address as the source
}

// forwards returns the state of a network with port forwards. The network's name is the namespace
// of the services, and their owner. Containers of a bridge reach one another through the listen
// address.
func forwards(network string, l ...forward) servicemodel.State {
	state := servicemodel.State{}.WithNode(servicemodel.Node{MasqueradeNeighbours: true})
	for i, f := range l {
		svc := &servicemodel.Service{
			Name:        servicemodel.Name{Namespace: network, Name: fmt.Sprint("forward-", i)},
			ExternalIPs: []netip.Addr{netip.MustParseAddr(f.listen)},
			Masquerade:  servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)}
		if f.source {
			svc.Masquerade = servicemodel.MasqueradeAt(servicemodel.MasqueradeAlways)
			svc.MasqueradeIPs = svc.ExternalIPs
		}

		e := servicemodel.Endpoint{Addr: f.target.Addr(svc.ExternalIPs[0])}
		for _, port := range f.ports {
			name := fmt.Sprint("p", port)
			svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: name,
				Protocol: servicemodel.TCP, Port: port})
			e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: name,
				Protocol: servicemodel.TCP, Port: port})
		}

		if f.end != 0 {
			svc.Ports[len(svc.Ports)-1].EndPort = f.end
			e.Ports[len(e.Ports)-1].Port = 0 // packets keep their ports
		}

		state = state.WithService(svc).
			WithEndpoints(svc.Name, []servicemodel.Endpoint{e})
	}

	return state
}

// bridged is a node with a bridge, and containers on it that serve some ports.
func bridged(t *testing.T) *netnstest.Cluster {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{Bridge: "incusbr0"})
	for _, h := range c.Pods {
		for _, port := range []uint16{80, 81, 8080, 8085, 8090, 9000} {
			require.NoError(t, h.Serve(servicemodel.TCP, port))
		}
	}

	return c
}

const (
	listenAt  = "203.0.113.10"
	listenAt6 = "2001:db8:113::10"
	otherAt   = "203.0.113.20"
)

// requireTarget requires that clients outside, on the bridge and on the host reach a container.
func requireTarget(t *testing.T, c *netnstest.Cluster, to string, want *netnstest.Host) {
	t.Helper()
	for _, from := range []*netnstest.Host{c.Outside[0], c.Pods[0], c.Pods[2], c.Node} {
		require.Equal(t, want.Name, send(t, from, servicemodel.TCP, to).Server, "%s to %s",
			from.Name, to)
	}

	got := send(t, c.Outside[0], servicemodel.TCP, to)
	require.Equal(t, c.Outside[0].Addr(got.Source.Addr()), got.Source.Addr())
}

// requireNoTarget requires that nothing is forwarded.
func requireNoTarget(t *testing.T, c *netnstest.Cluster, to string) {
	t.Helper()
	got := send(t, c.Outside[0], servicemodel.TCP, to)
	require.Equal(t, netnstest.Net.Internet, got.Server, to)
}

// Each network is an owner in one instance. Its forwards are changed and removed by processes that
// know no other network.
func TestIncusForwardsOfNetworks(t *testing.T) {
	t.Parallel()
	c := bridged(t)
	parts := func() *dataplane.Parts {
		return dataplane.NewParts(opened(t, c.Node.NS.NetNS(), "incus"), nil)
	}
	change := func(network string, l ...forward) {
		t.Helper()
		r, err := parts().Apply(t.Context(), network, forwards(network, l...))
		require.NoError(t, err)
		require.NoError(t, r.Unsettled)
	}

	other := forward{listen: otherAt, ports: []uint16{80}, target: c.Pods[2]}
	change("incusbr1", other)
	change("incusbr0", forward{listen: listenAt, ports: []uint16{80, 81, 8080}, target: c.Pods[0]},
		forward{listen: listenAt6, ports: []uint16{80}, target: c.Pods[0]})
	for _, port := range []uint16{80, 81, 8080} {
		requireTarget(t, c, at(listenAt, port), c.Pods[0])
	}
	requireTarget(t, c, at(listenAt6, 80), c.Pods[0])
	requireTarget(t, c, at(otherAt, 80), c.Pods[2])

	conns, err := netnstest.OpenConns(t.Context(), c.Outside[0],
		netip.MustParseAddrPort(at(otherAt, 80)), 5)
	require.NoError(t, err)
	defer conns.Close()
	change("incusbr0", forward{listen: listenAt, ports: []uint16{80, 8085}, target: c.Pods[1]})
	requireTarget(t, c, at(listenAt, 80), c.Pods[1])
	requireTarget(t, c, at(listenAt, 8085), c.Pods[1])
	requireNoTarget(t, c, at(listenAt, 81))
	requireNoTarget(t, c, at(listenAt6, 80))
	_, err = parts().Apply(t.Context(), "incusbr0", forwards("incusbr0", other))
	var taken *servicemodel.TakenError
	require.ErrorAs(t, err, &taken, "another network has the address and port")
	_, err = parts().Remove(t.Context(), "incusbr0")
	require.NoError(t, err)
	requireNoTarget(t, c, at(listenAt, 80))
	requireTarget(t, c, at(otherAt, 80), c.Pods[2])
	require.Zero(t, conns.Ping(time.Minute).Lost())
	_, err = parts().Remove(t.Context(), "incusbr1")
	require.NoError(t, err)
	requireNoTarget(t, c, at(otherAt, 80))
}

// A network may forward ranges, and have a default target for all other ports. Another network may
// have other ports of the same address, but no port that is taken.
func TestIncusForwardsRanges(t *testing.T) {
	t.Parallel()
	c := bridged(t)
	parts := dataplane.NewParts(opened(t, c.Node.NS.NetNS(), "incus"), nil)
	change := func(network string, l ...forward) {
		t.Helper()
		r, err := parts.Apply(t.Context(), network, forwards(network, l...))
		require.NoError(t, err)
		require.Empty(t, r.Drift)
	}

	for _, listen := range []string{listenAt, listenAt6} {
		ports := forward{listen: listen, ports: []uint16{80, 81, 8080}, end: 8089,
			target: c.Pods[0]}
		rest := forward{listen: listen, ports: []uint16{1}, end: 65535, target: c.Pods[1]}
		change("incusbr0", ports, rest)
		for _, port := range []uint16{80, 81, 8080, 8085} {
			requireTarget(t, c, at(listen, port), c.Pods[0])
		}
		for _, port := range []uint16{8090, 9000} {
			requireTarget(t, c, at(listen, port), c.Pods[1])
		}

		change("incusbr0", ports)
		change("incusbr1", forward{listen: listen, ports: []uint16{8090}, end: 8100,
			target: c.Pods[2]})
		requireTarget(t, c, at(listen, 8085), c.Pods[0])
		requireTarget(t, c, at(listen, 8090), c.Pods[2])
		requireNoTarget(t, c, at(listen, 9000))
		var taken *servicemodel.TakenError
		_, err := parts.Apply(t.Context(), "incusbr0", forwards("incusbr0", rest))
		require.ErrorAs(t, err, &taken)
		require.Equal(t, uint16(8090), taken.Key.Port)
		one := forward{listen: listen, ports: []uint16{8100}, target: c.Pods[0]}
		_, err = parts.Apply(t.Context(), "incusbr2", forwards("incusbr2", one))
		require.ErrorAs(t, err, &taken)

		change("incusbr1")
		rest.source = true
		change("incusbr0", rest)
		requireNoTarget(t, c, at(otherAt, 80))
		to := netip.MustParseAddrPort(at(listen, 9000)).Addr()
		got := send(t, c.Outside[0], servicemodel.TCP, at(listen, 9000))
		require.Equal(t, to, got.Source.Addr())
	}
}

// A load balancer on a plain bridge, whose instances are checked.
func TestIncusLoadBalancer(t *testing.T) {
	t.Parallel()
	c := bridged(t)
	e := dataplane.New(opened(t, c.Node.NS.NetNS(), "incus"), nil)
	follower, err := checks.NewFollower(func(s servicemodel.State) { e.Set(s) },
		&checks.Config{NetNS: c.Node.NS.NetNS()})
	require.NoError(t, err)
	name := servicemodel.Name{Namespace: "incusbr0", Name: "lb"}
	const port = 7000 // only served by two of the instances
	var servers []*netnstest.Server
	for _, h := range c.Pods[:2] {
		s, err := h.NS.Serve(h.Name, servicemodel.TCP, netip.AddrPortFrom(h.IPv4, port))
		require.NoError(t, err)
		servers = append(servers, s)
	}

	var l []servicemodel.Endpoint
	for _, h := range c.Pods {
		l = append(l, endpoint(h.IPv4, servicemodel.TCP, port))
	}
	state := servicemodel.State{}.WithNode(servicemodel.Node{MasqueradeNeighbours: true}).
		WithService(&servicemodel.Service{Name: name,
			Ports:           []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: port}},
			LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: netip.MustParseAddr(listenAt)}},
			Scheduler:       servicemodel.RoundRobin,
			Masquerade:      servicemodel.MasqueradeAt(servicemodel.MasqueradeNever),
		}).WithEndpoints(name, l)
	require.NoError(t, follower.Set(state, map[servicemodel.Name][]checks.Check{name: {{
		Type: checks.TCP, Interval: 50 * time.Millisecond, Retry: 20 * time.Millisecond}}}, nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- e.Run(ctx, nil) }()
	go func() { ended <- follower.Run(ctx) }()
	servedBy := func(want ...*netnstest.Host) {
		t.Helper()
		require.Eventually(t, func() bool {
			got := map[string]bool{}
			for range 2 * len(c.Pods) {
				o := netnstest.Probe{From: c.Pods[2], Proto: servicemodel.TCP,
					To: netip.MustParseAddrPort(at(listenAt, port))}.Send(ctx)
				got[o.Server] = true
			}

			return slices.Equal(slices.Sorted(maps.Keys(got)), names(want...))
		}, time.Minute, time.Millisecond)
	}

	servedBy(c.Pods[0], c.Pods[1])
	require.NoError(t, servers[0].Close())
	servedBy(c.Pods[1])
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}
