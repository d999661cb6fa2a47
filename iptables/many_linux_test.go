package iptables

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Packets find their service among many, by address, protocol and port. Packets to other
// destinations find none.
func TestPacketsFindTheirServiceAmongMany(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	s := manyServices(1500, 1)
	node := s.Node()
	node.Addresses = addrs(netnstest.Net.NodeIPv4, netnstest.Net.NodeIPv6)
	s = s.WithNode(node)
	pod := c.Pods[1]
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: backendPort}}
	for i := 7; i < 1500; i += 100 {
		svc := *s.Service(svcName("service-" + strconv.Itoa(i)))
		svc.Ports = []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: uint16(30000 + i)}}
		s = s.WithService(&svc).WithEndpoints(svc.Name,
			[]sm.Endpoint{{Addr: pod.IPv4, Ready: true, Serving: true, Node: "node", Ports: ports}})
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
