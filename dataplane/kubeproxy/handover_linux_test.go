package kubeproxy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// webAddr is the address of the tests' service. kube-proxy's rules know only its first endpoint. So
// if a connection goes to the second, kernlb has balanced it.
var webAddr = netip.MustParseAddrPort("10.96.0.10:80")

// webState is the service with two endpoints.
func webState(c *netnstest.Cluster) sm.State {
	web := &sm.Service{
		Name:       sm.Name{Namespace: "default", Name: "web"},
		Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: webAddr.Port()}},
		ClusterIPs: []netip.Addr{webAddr.Addr()},
	}
	var l []sm.Endpoint
	for _, pod := range c.Pods[:2] {
		l = append(l, sm.Endpoint{Addr: pod.IPv4, Ready: true, Serving: true, Node: "node",
			Ports: []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}})
	}
	return sm.State{}.WithService(web).WithEndpoints(web.Name, l).WithNode(sm.Node{
		Name: "node", Addresses: c.NodeAddrs(), LocalPods: sm.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix(netnstest.Net.ClusterCIDRv4)}}})
}

// backends are the backends that a test hands over to.
var backends = map[string]func(fd int) (dataplane.Backend, error){
	"nftables": func(fd int) (dataplane.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: fd})
	},
	"iptables": func(fd int) (dataplane.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: fd})
	},
	"iptables with another prefix": func(fd int) (dataplane.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: fd, Prefix: "KLB"})
	},
}

// Connections that kube-proxy has balanced go on while kernlb takes over and after kube-proxy's
// rules are gone. No new connection fails meanwhile, and in the end kernlb balances them.
func TestConnectionsOutliveTheHandOver(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"handover.rules", "handover.nft"} {
		for name, open := range backends {
			t.Run(file+" to "+name, func(t *testing.T) {
				t.Parallel()
				c := netnstest.Start(t, netnstest.Options{})
				for _, pod := range c.Pods {
					require.NoError(t, pod.Serve(sm.TCP, 8080))
				}
				load := []string{"iptables-nft-restore", "--noflush"}
				if file == "handover.nft" {
					load = []string{"nft", "-f", "-"}
				}
				nstest.Exec(t, c.Node.NS, recorded(t, file), load...)
				b := ok(open(c.Node.NS.Fd()))(t)
				defer b.Close()
				handOver(t, c, b)
			})
		}
	}
}

// handOver hands over from kube-proxy to a backend, with connections open.
func handOver(t *testing.T, c *netnstest.Cluster, b dataplane.Backend) {
	t.Helper()
	held := ok(netnstest.OpenConns(t.Context(), c.Outside[0], webAddr, 20))(t)
	defer held.Close()
	require.Equal(t, map[string]int{"pod1": 20}, held.Servers())
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan []netnstest.Outcome)
	go func() { failed <- probeUntil(ctx, c) }()

	ok(dataplane.New(b, nil).Apply(t.Context(), webState(c)))(t)
	done := cleanup(t, c.Node.NS)
	require.False(t, done.Empty())
	require.True(t, find(t, c.Node.NS).Empty())

	report := held.Ping(5 * time.Second)
	require.Zero(t, report.Lost(), report.Errors)
	stop()
	require.Empty(t, <-failed, "connections that were opened meanwhile")
	after := ok(netnstest.OpenConns(t.Context(), c.Outside[0], webAddr, 40))(t)
	defer after.Close()
	require.NotZero(t, after.Servers()["pod1"])
	require.NotZero(t, after.Servers()["pod2"], "kube-proxy's rules do not know it")
}

// probeUntil opens connections one after the other until ctx ends, and returns those that failed.
func probeUntil(ctx context.Context, c *netnstest.Cluster) (failed []netnstest.Outcome) {
	for ctx.Err() == nil {
		o := netnstest.Probe{From: c.Pods[2], Proto: sm.TCP, To: webAddr,
			Timeout: 2 * time.Second}.Send(context.WithoutCancel(ctx))
		if o.Kind != netnstest.Answered || o.Server != "pod1" && o.Server != "pod2" {
			failed = append(failed, o)
		}
	}
	return failed
}
