package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

func webEndpoints(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Subsets: subsets}
}

func subset(port int32, addresses ...string) corev1.EndpointSubset {
	s := corev1.EndpointSubset{
		Ports: []corev1.EndpointPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: port}}}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a})
	}
	return s
}

var (
	notReadySubset = corev1.EndpointSubset{Ports: subset(8080).Ports,
		NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.1.0.1"}}}
	nodeSubset = corev1.EndpointSubset{Ports: subset(8080).Ports,
		Addresses: []corev1.EndpointAddress{{IP: "10.1.0.1", NodeName: ptr("node-a")}}}
	twoPortsSubset = corev1.EndpointSubset{Addresses: subset(0, "10.1.0.1", "10.1.0.2").Addresses,
		Ports: append(subset(8080).Ports, corev1.EndpointPort{Name: "dns",
			Protocol: corev1.ProtocolUDP, Port: 53})}
	untypedSubset = corev1.EndpointSubset{Addresses: subset(0, "10.1.0.1").Addresses,
		Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}}}
	portlessSubset = corev1.EndpointSubset{Addresses: subset(0, "10.1.0.1", "10.1.0.2").Addresses}
)

func headless(e *corev1.Endpoints) *corev1.Endpoints {
	e.Labels = map[string]string{"service.kubernetes.io/headless": ""}
	return e
}

func overCapacity(e *corev1.Endpoints) *corev1.Endpoints {
	e.Annotations = map[string]string{"endpoints.kubernetes.io/over-capacity": "truncated"}
	return e
}

// changed is the endpoint at an address, changed.
func changed(address string, change func(*servicemodel.Endpoint)) servicemodel.Endpoint {
	e := webEndpoint(address)
	change(&e)
	return e
}

func idle(e *servicemodel.Endpoint)    { e.Ready, e.Serving = false, false }
func onNodeA(e *servicemodel.Endpoint) { e.Node = "node-a" }
func withDNS(e *servicemodel.Endpoint) {
	e.Ports = append(httpOn(8080), servicemodel.EndpointPort{Name: "dns",
		Protocol: servicemodel.UDP, Port: 53})
}

// endpointsCases are Endpoints of a service, and the endpoints that result from them.
var endpointsCases = []struct {
	name  string
	given *corev1.Endpoints
	want  endpoints
}{
	{"addresses are ready", webEndpoints(subset(8080, "10.1.0.1")),
		endpoints{webEndpoint("10.1.0.1")}},
	{"not-ready addresses are not", webEndpoints(notReadySubset),
		endpoints{changed("10.1.0.1", idle)}},
	{"the node", webEndpoints(nodeSubset), endpoints{changed("10.1.0.1", onNodeA)}},
	{"each address with each port", webEndpoints(twoPortsSubset),
		endpoints{changed("10.1.0.1", withDNS), changed("10.1.0.2", withDNS)}},
	{"subsets are united", webEndpoints(subset(8080, "10.1.0.1"), subset(9090, "10.1.0.2")),
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.2")}},
	{"ready in one subset is ready", webEndpoints(notReadySubset, subset(8080, "10.1.0.1")),
		endpoints{webEndpoint("10.1.0.1")}},
	{"both families", webEndpoints(subset(8080, "10.1.0.1", "fd00::1")),
		endpoints{webEndpoint("10.1.0.1"), webEndpoint("fd00::1")}},
	{"leading zeros", webEndpoints(subset(8080, "010.001.000.001")),
		endpoints{webEndpoint("10.1.0.1")}},
	{"no protocol is TCP", webEndpoints(untypedSubset), endpoints{webEndpoint("10.1.0.1")}},
	{"a subset without ports serves nothing",
		webEndpoints(portlessSubset), nil},
	{"no subsets, as those used for leader election", webEndpoints(), nil},
	{"of a headless service", headless(webEndpoints(subset(8080, "10.1.0.1"))), nil},
	{"annotations mean nothing", overCapacity(webEndpoints(subset(8080, "10.1.0.1"))),
		endpoints{webEndpoint("10.1.0.1")}},
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for _, tt := range endpointsCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetEndpoints(tt.given))
			requireNoProblems(t, tracker.SetService(webService()))
			require.Equal(t, tt.want, tracker.State().Endpoints(web))
			require.NoError(t, tracker.State().Validate())

			tracker.DeleteEndpoints(web)
			require.Empty(t, tracker.State().Endpoints(web))
		})
	}
}

func TestInvalidEndpointsKeepOut(t *testing.T) {
	t.Parallel()
	change := func(f func(*corev1.EndpointSubset)) corev1.EndpointSubset {
		s := subset(8080, "10.1.0.1")
		f(&s)
		return s
	}
	for _, tt := range []struct {
		name  string
		given corev1.EndpointSubset
		want  string
	}{
		{"bad address", subset(8080, "10.1.0.1", "x"),
			"subsets[0].addresses[1].ip: x: not an IP address"},
		{"bad not-ready address", change(func(s *corev1.EndpointSubset) {
			s.NotReadyAddresses = []corev1.EndpointAddress{{IP: "127.0.0.1"}}
		}), "subsets[0].notReadyAddresses[0].ip: 127.0.0.1: may not be a loopback address"},
		{"port 0", subset(0, "10.1.0.1"),
			"subsets[0].ports[0].port: 0: must be between 1 and 65535"},
		{"unknown protocol", change(func(s *corev1.EndpointSubset) { s.Ports[0].Protocol = "X" }),
			"subsets[0].ports[0].protocol: X: must be TCP, UDP or SCTP"},
		{"duplicate port", change(func(s *corev1.EndpointSubset) {
			s.Ports = append(s.Ports, s.Ports[0])
		}),
			"subsets[0].ports[1].name: http: is the name of subsets[0].ports[0] too, with the " +
				"same protocol"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService()))
			requireNoProblems(t, tracker.SetEndpoints(webEndpoints(subset(8080, "10.1.0.9"))))
			require.Equal(t, []string{"error: Endpoints default/web: " + tt.want},
				texts(tracker.SetEndpoints(webEndpoints(tt.given))))
			require.Empty(t, tracker.State().Endpoints(web))
		})
	}
}

func TestSlicesWinOverEndpoints(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(kube.Config{})
	requireNoProblems(t, tracker.SetService(webService()))
	requireNoProblems(t, tracker.SetEndpoints(webEndpoints(subset(8080, "10.1.0.1"))))
	legacy := []servicemodel.Endpoint{webEndpoint("10.1.0.1")}
	require.Equal(t, legacy, tracker.State().Endpoints(web))

	requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-1", "10.1.0.2")))
	require.Equal(t, []servicemodel.Endpoint{webEndpoint("10.1.0.2")},
		tracker.State().Endpoints(web))

	requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-1")))
	require.Empty(t, tracker.State().Endpoints(web), "an empty slice is a slice")

	tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: "web-1"})
	require.Equal(t, legacy, tracker.State().Endpoints(web))
}
