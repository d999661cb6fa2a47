package servicemodel_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

const addrA, addrB, addrC = "10.64.0.1", "10.64.0.2", "10.64.0.3"

// selections are endpoints, and the endpoints that a node chooses from the cluster and from its
// own.
var selections = []struct {
	name           string
	endpoints      []sm.Endpoint
	cluster, local []string
}{
	{"no endpoints", nil, nil, nil},
	{"ready ones, wherever they are",
		[]sm.Endpoint{endpoint(addrB), endpoint(addrA, here), endpoint(addrC, anywhere)},
		[]string{addrA, addrB, addrC}, []string{addrA}},
	{"not those that are not ready", []sm.Endpoint{endpoint(addrA, notReady), endpoint(addrB)},
		[]string{addrB}, nil},
	{"not those that terminate and no longer serve", []sm.Endpoint{endpoint(addrA, dying, here)},
		nil, nil},
	{"terminating ones that serve if no other is ready",
		[]sm.Endpoint{endpoint(addrA, terminating), endpoint(addrB, notReady)}, []string{addrA},
		nil},
	{"no terminating ones beside ready ones",
		[]sm.Endpoint{endpoint(addrA, terminating), endpoint(addrB)}, []string{addrB}, nil},
	{"the local fallback is apart from the cluster's",
		[]sm.Endpoint{endpoint(addrA, terminating, here), endpoint(addrB)}, []string{addrB},
		[]string{addrA}},

	{"zone hints choose the zone",
		[]sm.Endpoint{endpoint(addrA, zones("z1")), endpoint(addrB, zones("z2"))}, []string{addrA},
		nil},
	{"one of several zones in a hint is enough",
		[]sm.Endpoint{endpoint(addrA, zones("z3", "z1")), endpoint(addrB, zones("z2"))},
		[]string{addrA}, nil},
	{"one endpoint without hint switches zone hints off",
		[]sm.Endpoint{endpoint(addrA, zones("z1")), endpoint(addrB)}, []string{addrA, addrB}, nil},
	{"an unready endpoint without hint does not", []sm.Endpoint{endpoint(addrA, zones("z1")),
		endpoint(addrB, notReady), endpoint(addrC, zones("z2"))}, []string{addrA}, nil},
	{"zone hints that name this zone nowhere are ignored",
		[]sm.Endpoint{endpoint(addrA, zones("z2")), endpoint(addrB, zones("z3"))},
		[]string{addrA, addrB}, nil},
	{"a zone named by an unready endpoint only is not named",
		[]sm.Endpoint{endpoint(addrA, zones("z1"), notReady), endpoint(addrB, zones("z2"))},
		[]string{addrB}, nil},
	{"topology does not limit local endpoints",
		[]sm.Endpoint{endpoint(addrA, zones("z1")), endpoint(addrB, zones("z2"), here)},
		[]string{addrA}, []string{addrB}},
	{"topology does not limit terminating endpoints",
		[]sm.Endpoint{endpoint(addrA, zones("z1"), terminating),
			endpoint(addrB, zones("z2"), terminating)}, []string{addrA, addrB}, nil},

	{"node hints come before zone hints",
		[]sm.Endpoint{endpoint(addrA, nodes("here"), zones("z2")),
			endpoint(addrB, nodes("there"), zones("z1"))}, []string{addrA}, nil},
	{"node hints that do not name this node leave it to the zone hints",
		[]sm.Endpoint{endpoint(addrA, nodes("x"), zones("z1")),
			endpoint(addrB, nodes("y"), zones("z2"))}, []string{addrA}, nil},
	{"one endpoint without node hint leaves it to the zone hints",
		[]sm.Endpoint{endpoint(addrA, nodes("here"), zones("z2")), endpoint(addrB, zones("z1"))},
		[]string{addrB}, nil},
	{"the place of an endpoint is not a hint",
		[]sm.Endpoint{endpoint(addrA, here, nodes("there")), endpoint(addrB, nodes("here"))},
		[]string{addrB}, []string{addrA}},

	{"an address given twice counts once", []sm.Endpoint{endpoint(addrA), endpoint(addrA)},
		[]string{addrA}, nil},
	{"of an address given twice, the ready one counts",
		[]sm.Endpoint{endpoint(addrA, notReady), endpoint(addrA, here)}, []string{addrA},
		[]string{addrA}},
	{"in any order", []sm.Endpoint{endpoint(addrA, here), endpoint(addrA, terminating)},
		[]string{addrA}, []string{addrA}},
	{"else the first", []sm.Endpoint{endpoint(addrA), endpoint(addrA, here)}, []string{addrA}, nil},
}

func TestEndpointsChosenForANode(t *testing.T) {
	t.Parallel()
	for _, tt := range selections {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, thisNode, webService(externalLocal), tt.endpoints...)
			require.Equal(t, tt.cluster, endpointsOf(table, sm.IPv4, false), "cluster")
			require.Equal(t, tt.local, endpointsOf(table, sm.IPv4, true), "local")
		})
	}
}

// The node contacts its own node ports from a loopback address only in IPv4, whatever the policy of
// the service. So only IPv4 requires masquerading.
func TestOnlyIPv4NodePortsOfLocalhostAreMasqueraded(t *testing.T) {
	t.Parallel()
	node := thisNode
	node.LocalhostNodePorts = true
	node.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	for _, policy := range []sm.MasqueradePolicy{sm.MasqueradeNever, sm.MasqueradeAlways} {
		table := tableOf(t, node, webService(func(s *sm.Service) {
			s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:10:96::1"))
			s.Ports[0].NodePort, s.Masquerade = 30080, sm.MasqueradeAt(policy)
		}))
		want := map[sm.Family]sm.Origins{sm.IPv4: sm.FromHost}
		if policy == sm.MasqueradeAlways {
			want = map[sm.Family]sm.Origins{sm.IPv4: sm.FromAnywhere, sm.IPv6: sm.FromAnywhere}
		}
		for f := range table.Frontends() {
			if f.Key.NodePort() {
				require.Equal(t, want[f.Key.Family()], f.Masquerade, "%v, %s", f.Key, policy)
				require.Equal(t, policy, f.MasqueradePolicy)
				delete(want, f.Key.Family())
			}
		}

		require.Empty(t, want[sm.IPv4])
	}
}

func TestEndpointsServeThePortOfTheirNameAndProtocol(t *testing.T) {
	t.Parallel()
	svc := webService(func(s *sm.Service) {
		s.Ports = []sm.ServicePort{
			{Name: "dns", Protocol: sm.UDP, Port: 53}, {Name: "dns-tcp", Protocol: sm.TCP,
				Port: 53}, {Name: "sctp", Protocol: sm.SCTP, Port: 53},
		}
	})
	table := tableOf(t, thisNode, svc,
		endpoint("10.64.0.1", func(e *sm.Endpoint) {
			e.Ports = []sm.EndpointPort{
				{Name: "dns", Protocol: sm.UDP, Port: 5353}, {Name: "dns-tcp", Protocol: sm.UDP,
					Port: 1}, {Name: "other", Protocol: sm.TCP, Port: 2},
			}
		}),
		endpoint("10.64.0.2", func(e *sm.Endpoint) {
			e.Weight = 7
			e.Ports = []sm.EndpointPort{{Name: "dns", Protocol: sm.UDP, Port: 5354},
				{Name: "dns-tcp", Protocol: sm.TCP, Port: 5355}}
		}),
	)
	require.Equal(t, []string{
		"default/web:dns/udp IPv4 cluster: 10.64.0.1:5353, 10.64.0.2:5354 weight 7",
		"default/web:dns-tcp/tcp IPv4 cluster: 10.64.0.2:5355",
	}, texts(table.Pools()))
	require.Equal(t, sm.Reject, frontendAt(t, table, "10.96.0.1:53", sm.SCTP).Internal)
}

// If an endpoint has many ports, they get an index, which is built once for all endpoints that
// share the ports.
func TestEndpointsServeEachOfManyPorts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 15, 16, 17, 18, 40} {
		svc := webService(func(s *sm.Service) { s.Ports = nil })
		var ports, others []sm.EndpointPort
		for i := range n {
			name, p := fmt.Sprintf("p%d", i), []sm.Protocol{sm.TCP, sm.UDP}[i%2]
			at := uint16(1000 + i)
			svc.Ports = append(svc.Ports, sm.ServicePort{Name: name, Protocol: p, Port: at})
			ports = append(ports, sm.EndpointPort{Name: name, Protocol: p, Port: at + 1000})
			others = append(others, sm.EndpointPort{Name: name, Protocol: p, Port: at + 2000})
		}

		with := func(l []sm.EndpointPort) func(*sm.Endpoint) {
			return func(e *sm.Endpoint) { e.Ports = l }
		}
		table := tableOf(t, thisNode, svc, endpoint(addrA, with(ports)),
			endpoint(addrB, with(ports)), endpoint(addrC, with(others)))
		for i, p := range svc.Ports {
			pool := table.Pool(sm.PoolID{Service: sm.PortName{Name: web, Port: p.Name,
				Protocol: p.Protocol}, Family: sm.IPv4})
			require.NotNil(t, pool, "port %d of %d", i, n)
			require.Equal(t, fmt.Sprintf("default/web:%s/%s IPv4 cluster: %s:%d, %s:%d, %s:%d",
				p.Name, p.Protocol, addrA, 2000+i, addrB, 2000+i, addrC, 3000+i), pool.String())
		}
	}
}
