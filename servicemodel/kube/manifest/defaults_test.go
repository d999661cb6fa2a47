package manifest_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// The state has the values that an API server would have filled in.
func TestDefaults(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	plain := servicemodel.Service{
		Name: web, Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
		ClusterIPs: []netip.Addr{addr("10.96.0.10")},
	}
	with := func(change func(*servicemodel.Service)) servicemodel.Service {
		s := plain
		change(&s)
		return s
	}

	for _, tt := range []struct {
		name, spec string
		want       servicemodel.Service
	}{
		{"protocol, type, policies, affinity, list and family of the cluster IP",
			"{clusterIP: 10.96.0.10, ports: [{port: 80}]}", plain},
		{"the family of an IPv6 cluster IP", "{clusterIP: 'fd00:96::10', ports: [{port: 80}]}",
			with(func(s *servicemodel.Service) {
				s.ClusterIPs = []netip.Addr{addr("fd00:96::10")}
			})},
		{"the families of two cluster IPs",
			"{clusterIP: 'fd00:96::10', clusterIPs: ['fd00:96::10', 10.96.0.10], " +
				"ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}",
			with(func(s *servicemodel.Service) {
				s.ClusterIPs = []netip.Addr{addr("fd00:96::10"), addr("10.96.0.10")}
			})},
		{"families that are given stay",
			"{clusterIP: 10.96.0.10, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, ports: " +
				"[{port: 80}]}", plain},
		{"the affinity timeout",
			"{clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}",
			with(func(s *servicemodel.Service) {
				s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true,
					Timeout: 3 * time.Hour}
			})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t,
				"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: "+tt.spec)
			require.Empty(t, texts(result.Problems))
			require.Equal(t, &tt.want, tracker.State().Service(web))
		})
	}
}

func TestEndpointSliceDefaults(t *testing.T) {
	t.Parallel()
	tracker, result := load(t, `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
`)
	require.Empty(t, texts(result.Problems))
	require.Equal(t, []servicemodel.Endpoint{{
		Addr: netip.MustParseAddr("10.1.0.1"), Ports: []servicemodel.EndpointPort{
			{Protocol: servicemodel.TCP, Port: 8080}},
	}}, tracker.State().Endpoints(web))
}

func TestNoClusterIPByIntention(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		"{clusterIP: None, ports: [{port: 80}]}", "{type: ExternalName, externalName: example.com}",
		"{clusterIP: None, clusterIPs: [None], selector: {app: web}}",
	} {
		tracker, result := load(t,
			"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: "+spec)
		require.Empty(t, texts(result.Problems))
		require.Zero(t, tracker.State().Len())
	}
}
