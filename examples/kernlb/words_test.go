package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/servicemodel"
)

// status names each address that a service lost.
func TestStatusNamesConflicts(t *testing.T) {
	t.Parallel()
	name := func(s string) servicemodel.PortName {
		return servicemodel.PortName{Name: servicemodel.Name{Namespace: "default", Name: s},
			Port: "http", Protocol: servicemodel.TCP}
	}

	var at servicemodel.FrontendKey
	require.NoError(t, at.UnmarshalText([]byte("10.96.0.10:80/tcp")))
	h := healthJSON{Healthy: true, Serving: &health.Serving{Services: 2, Serve: 1, Nowhere: 1,
		Conflicts: 1, Lost: []servicemodel.Conflict{{Key: at, Winner: name("web"),
			Loser: name("zweb")}}}}
	require.Contains(t, h.text(), "serving: 1 of 2 services; 1 without an address at this node; "+
		"conflicts: 1\nconflict: 10.96.0.10:80/tcp: default/web:http wins over default/zweb:http\n")
}

// A packet that the node cannot route, to a service that would reject it, has both causes.
func TestTraceSaysThatTheServiceWouldReject(t *testing.T) {
	t.Parallel()
	svc := servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	table, err := servicemodel.Resolve(nil, servicemodel.State{}.WithService(&svc))
	require.NoError(t, err)
	packet := servicemodel.Packet{Protocol: servicemodel.TCP,
		Src: netip.MustParseAddrPort("10.244.1.5:4000"),
		Dst: netip.MustParseAddrPort("10.96.0.10:80")}
	lost := livetrace.Packet{Src: packet.Src, Dst: packet.Dst, Protocol: packet.Protocol}
	l := liveTrace{program: &program{}, table: table, packet: packet}
	one, _ := l.describe(&livetrace.Trace{Packet: lost, Last: lost, Fate: livetrace.Lost,
		Hook: "prerouting", Routing: "there is no route to 10.96.0.10"}, nil)
	require.Equal(t, "it is dropped at the routing decision after prerouting: there is no route "+
		"to 10.96.0.10; the service would have rejected it anyhow: the service has no endpoints",
		one.Summary)
}
