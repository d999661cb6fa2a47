package leastconn

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// If the shares of an endpoint's ports differ, the endpoints of the program keep their places.
func TestEndpointsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	ports := []servicemodel.EndpointPort{{Name: "a", Protocol: servicemodel.TCP, Port: 80},
		{Name: "b", Protocol: servicemodel.TCP, Port: 81},
		{Name: "c", Protocol: servicemodel.TCP, Port: 82}}
	one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	eps := []servicemodel.Endpoint{{Addr: one, Ports: ports}, {Addr: two, Ports: ports},
		{Addr: two}}
	f := &Follower{shares: map[servicemodel.PortName]map[netip.AddrPort]uint16{}}
	for i, p := range ports {
		f.shares[servicemodel.PortName{Name: name, Port: p.Name, Protocol: p.Protocol}] =
			map[netip.AddrPort]uint16{netip.AddrPortFrom(one, p.Port): uint16(1 + i%2)}
	}

	require.Equal(t, []servicemodel.Endpoint{
		{Addr: one, Share: 1, Ports: []servicemodel.EndpointPort{ports[0], ports[2]}},
		eps[1], eps[2],
		{Addr: one, Share: 2, Ports: ports[1:2]},
	}, f.sharedEndpoints(&servicemodel.Service{Name: name},
		slices.Values(eps)))
	require.Equal(t, ports, eps[0].Ports, "the program's endpoints are not modified")
}
