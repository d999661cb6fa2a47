package ipvs_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// neighbour is one of two instances on a node. Its service has a cluster IP, and an external
// address with other endpoints for clients outside.
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

// state has the service, whose endpoint on this node is pod2. Both instances declare the range of
// cluster IPs.
func (n *neighbour) state(split bool) servicemodel.State {
	svc := web(func(s *servicemodel.Service) {
		s.Ports[0].NodePort = 0
		s.ClusterIPs, s.ExternalIPs = []netip.Addr{n.cluster}, []netip.Addr{n.external}
		if split {
			s.ExternalTrafficPolicy = servicemodel.PolicyLocal
		}
	})
	s := n.kernel.state(svc, "pod2", "pod3")
	l := s.Endpoints(svc.Name)
	for i := range l {
		if l[i].Addr == n.pods["pod3"].IPv4 || l[i].Addr == n.pods["pod3"].IPv6 {
			l[i].Node = "other"
		}
	}
	return s.WithEndpoints(svc.Name, l).WithNode(servicemodel.Node{Name: "this",
		MasqueradeAll: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
}

// requireFate requires that the service treats pods, the host and a client outside as its settings
// say.
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
			probes = append(probes, netnstest.Probe{From: c.from, Proto: servicemodel.TCP,
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
	// The second instance gives its mark without having read the first one's.
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

// Packets that two instances forward unchanged are led to IPVS once, whichever instance sees a
// packet first.
func TestKernelInstancesRouteDirectly(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	l := []*neighbour{k.neighbour("one", "10.96.0.11", "203.0.113.11"),
		k.neighbour("two", "10.96.0.12", "203.0.113.12")}
	for _, n := range l {
		for _, p := range []string{"pod2", "pod3"} {
			n.holdAddresses(p, n.external)
		}
		n.apply(n.routedState(routed(servicemodel.ForwardDirect, func(s *servicemodel.Service) {
			s.ClusterIPs, s.ExternalIPs = nil, []netip.Addr{n.external}
			s.ExternalTrafficPolicy = servicemodel.PolicyLocal
		}), []string{"pod2"}, []string{"pod3"}))
	}
	for _, n := range l {
		n.requireAnswers(n.external, []*netnstest.Host{k.Outside[0]}, "pod2")
		n.requireAnswers(n.external, []*netnstest.Host{k.Node}, "pod2", "pod3")
	}
}
