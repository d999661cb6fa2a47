package servicemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestEndpointsChosenForANode(t *testing.T) {
	t.Parallel()
	const a, b, c = "10.64.0.1", "10.64.0.2", "10.64.0.3"
	tests := []struct {
		name           string
		endpoints      []sm.Endpoint
		cluster, local []string
	}{
		{"no endpoints", nil, nil, nil},
		{"ready ones, wherever they are",
			[]sm.Endpoint{endpoint(b), endpoint(a, here), endpoint(c, anywhere)}, []string{a, b, c},
			[]string{a}},
		{"not those that are not ready", []sm.Endpoint{endpoint(a, notReady), endpoint(b)},
			[]string{b}, nil},
		{"not those that serve but are neither ready nor terminating",
			[]sm.Endpoint{endpoint(a, servingOnly, here)}, nil, nil},
		{"not those that terminate and no longer serve", []sm.Endpoint{endpoint(a, dying, here)},
			nil, nil},
		{"terminating ones that serve if no other is ready",
			[]sm.Endpoint{endpoint(a, terminating), endpoint(b, notReady)}, []string{a}, nil},
		{"no terminating ones beside ready ones", []sm.Endpoint{endpoint(a, terminating),
			endpoint(b)}, []string{b}, nil},
		{"the local fallback is apart from the cluster's",
			[]sm.Endpoint{endpoint(a, terminating, here), endpoint(b)}, []string{b}, []string{a}},
		{"a ready one that terminates counts as ready (publish not ready)",
			[]sm.Endpoint{endpoint(a, func(e *sm.Endpoint) {
				e.Terminating = true
			}), endpoint(b, terminating)}, []string{a}, nil},

		{"zone hints choose the zone", []sm.Endpoint{endpoint(a, zones("z1")),
			endpoint(b, zones("z2"))}, []string{a}, nil},
		{"one of several zones in a hint is enough",
			[]sm.Endpoint{endpoint(a, zones("z3", "z1")), endpoint(b, zones("z2"))},
			[]string{a}, nil},
		{"one endpoint without hint switches zone hints off",
			[]sm.Endpoint{endpoint(a, zones("z1")), endpoint(b)}, []string{a, b}, nil},
		{"an unready endpoint without hint does not",
			[]sm.Endpoint{endpoint(a, zones("z1")), endpoint(b, notReady),
				endpoint(c, zones("z2"))}, []string{a}, nil},
		{"zone hints that name this zone nowhere are ignored",
			[]sm.Endpoint{endpoint(a, zones("z2")), endpoint(b, zones("z3"))}, []string{a, b}, nil},
		{"a zone named by an unready endpoint only is not named",
			[]sm.Endpoint{endpoint(a, zones("z1"), notReady), endpoint(b, zones("z2"))},
			[]string{b}, nil},
		{"topology does not limit local endpoints",
			[]sm.Endpoint{endpoint(a, zones("z1")), endpoint(b, zones("z2"), here)}, []string{a},
			[]string{b}},
		{"topology does not limit terminating endpoints",
			[]sm.Endpoint{endpoint(a, zones("z1"), terminating),
				endpoint(b, zones("z2"), terminating)}, []string{a, b}, nil},

		{"node hints come before zone hints",
			[]sm.Endpoint{endpoint(a, nodes("here"), zones("z2")),
				endpoint(b, nodes("there"), zones("z1"))}, []string{a}, nil},
		{"node hints that do not name this node leave it to the zone hints",
			[]sm.Endpoint{endpoint(a, nodes("x"), zones("z1")),
				endpoint(b, nodes("y"), zones("z2"))}, []string{a}, nil},
		{"one endpoint without node hint leaves it to the zone hints",
			[]sm.Endpoint{endpoint(a, nodes("here"), zones("z2")), endpoint(b, zones("z1"))},
			[]string{b}, nil},
		{"the place of an endpoint is not a hint",
			[]sm.Endpoint{endpoint(a, here, nodes("there")), endpoint(b, nodes("here"))},
			[]string{b}, []string{a}},

		{"an address given twice counts once", []sm.Endpoint{endpoint(a), endpoint(a)},
			[]string{a}, nil},
		{"of an address given twice, the ready one counts",
			[]sm.Endpoint{endpoint(a, notReady), endpoint(a, here)}, []string{a}, []string{a}},
		{"in any order", []sm.Endpoint{endpoint(a, here), endpoint(a, terminating)}, []string{a},
			[]string{a}},
		{"of two ready ones, that which stays",
			[]sm.Endpoint{endpoint(a, func(e *sm.Endpoint) {
				e.Terminating = true
			}), endpoint(a, here)}, []string{a}, []string{a}},
		{"else the first", []sm.Endpoint{endpoint(a), endpoint(a, here)}, []string{a}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table := tableOf(t, thisNode, webService(externalLocal), tt.endpoints...)
			require.Equal(t, tt.cluster, endpointsOf(table, sm.IPv4, sm.ScopeCluster), "cluster")
			require.Equal(t, tt.local, endpointsOf(table, sm.IPv4, sm.ScopeLocal), "local")
		})
	}
}

func TestANodeWithoutNameOrZoneHeedsNoHintsAndHasNoLocalEndpoints(t *testing.T) {
	t.Parallel()
	table := tableOf(t, sm.Node{}, webService(externalLocal),
		endpoint("10.64.0.1", anywhere, zones(""), nodes("")), endpoint("10.64.0.2", zones("z1"),
			nodes("n")))
	require.Equal(t, []string{"10.64.0.1", "10.64.0.2"},
		endpointsOf(table, sm.IPv4, sm.ScopeCluster))
	require.Nil(t, endpointsOf(table, sm.IPv4, sm.ScopeLocal))
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
		"default/web:dns-tcp/tcp IPv4 cluster: 10.64.0.2:5355 weight 7",
	}, texts(table.Pools()))
	require.Equal(t, sm.Reject, frontendAt(t, table, "10.96.0.1:53", sm.SCTP).Internal)
}
