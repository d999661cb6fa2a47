package ipvs_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// IPVS counts the traffic of clients, at cluster IPs and node ports, even after the endpoint is
// gone. conntrack has the same connections.
func TestKernelCounts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	held := k.apply(k.state(web(), "pod2")).Changes.New
	source := ok(ipvs.OpenCounters(&ipvs.Config{NetNS: k.Node.NS.Fd()}))(t)
	t.Cleanup(func() { require.NoError(t, source.Close()) })
	nodePort := servicemodel.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: servicemodel.TCP,
		Port: 30080}
	clusterIP := servicemodel.FrontendKey{Addr: webAddrs[0], Protocol: servicemodel.TCP, Port: 80}
	node := netip.MustParseAddr(netnstest.Net.NodeIPv4)
	for to, n := range map[netip.AddrPort]int{netip.AddrPortFrom(clusterIP.Addr, clusterIP.Port): 3,
		netip.AddrPortFrom(node, 30080): 2} {
		for range n {
			got := netnstest.Probe{From: k.pods["pod1"], Proto: servicemodel.TCP,
				To: to}.Send(t.Context())
			require.Equal(t, netnstest.Answered, got.Kind, got)
		}
	}
	pod2 := netip.AddrPortFrom(k.pods["pod2"].IPv4, 8080)
	here := servicemodel.Locality{node}
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

	table := ok(conntrack.Open(&conntrack.Config{NetNS: k.Node.NS.Fd()}))(t)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	r = ok(flows.Counters{Table: table}.Read(t.Context()))(t)
	require.Equal(t, uint64(3), r.Of(held, here).Endpoint(clusterIP, pod2).Connections)
}
