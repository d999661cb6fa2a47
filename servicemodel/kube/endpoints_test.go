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

// endpointsCases are changes to Endpoints of a service with one subset, in YAML, and the endpoints
// that result from them.
var endpointsCases = []struct {
	name, given string
	want        endpoints
}{
	{"addresses are ready", "", oneEndpoint("")},
	{"not-ready addresses are not",
		"subsets: [{addresses: null, notReadyAddresses: [{ip: 10.1.0.1}]}]",
		oneEndpoint("{ready: false, serving: false}")},
	{"the node", "subsets: [{addresses: [{nodeName: node-a}]}]", oneEndpoint("node: node-a")},
	{"each address with each port", "subsets: [{addresses: [{}, {ip: 10.1.0.2}], " +
		"ports: [{}, {name: dns, protocol: UDP, port: 53}]}]", append(
		oneEndpoint("ports: [{}, {name: dns, protocol: udp, port: 53}]"),
		oneEndpoint("{addr: 10.1.0.2, ports: [{}, {name: dns, protocol: udp, port: 53}]}")...)},
	{"subsets are united",
		"subsets: [{}, {addresses: [{ip: 10.1.0.2}], ports: [{name: http, port: 9090}]}]",
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.2")}},
	{"ready in one subset is ready",
		"subsets: [{}, {notReadyAddresses: [{ip: 10.1.0.1}], ports: [{name: http, port: 8080}]}]",
		oneEndpoint("")},
	{"both families", "subsets: [{addresses: [{}, {ip: 'fd00::1'}]}]",
		endpoints{webEndpoint("10.1.0.1"), webEndpoint("fd00::1")}},
	{"leading zeros", "subsets: [{addresses: [{ip: 010.001.000.001}]}]", oneEndpoint("")},
	{"no protocol is TCP", "subsets: [{ports: [{protocol: ''}]}]", oneEndpoint("")},
	{"a subset without ports serves nothing", "subsets: [{ports: null}]", nil},
	{"no subsets, as those used for leader election", "subsets: null", nil},
	{"of a headless service", "metadata: {labels: {service.kubernetes.io/headless: ''}}", nil},
	{"annotations mean nothing",
		"metadata: {annotations: {endpoints.kubernetes.io/over-capacity: truncated}}",
		oneEndpoint("")},
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for _, tt := range endpointsCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			given := patched(webEndpoints(subset(8080, "10.1.0.1")), tt.given)
			requireNoProblems(t, tracker.SetEndpoints(given))
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
	for _, tt := range []struct{ name, given, want string }{
		{"bad address", "addresses: [{}, {ip: x}]", "addresses[1].ip: x: not an IP address"},
		{"bad not-ready address", "notReadyAddresses: [{ip: 127.0.0.1}]",
			"notReadyAddresses[0].ip: 127.0.0.1: may not be a loopback address"},
		{"port 0", "ports: [{port: 0}]", "ports[0].port: 0: must be between 1 and 65535"},
		{"unknown protocol", "ports: [{protocol: X}]",
			"ports[0].protocol: X: must be TCP, UDP or SCTP"},
		{"duplicate port", "ports: [{}, {name: http, protocol: TCP, port: 8080}]",
			"ports[1].name: http: is the name of subsets[0].ports[0] too, with the same protocol"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService()))
			requireNoProblems(t, tracker.SetEndpoints(webEndpoints(subset(8080, "10.1.0.9"))))
			given := subset(8080, "10.1.0.1")
			require.Equal(t, []string{"error: Endpoints default/web: subsets[0]." + tt.want},
				texts(tracker.SetEndpoints(webEndpoints(*patched(&given, tt.given)))))
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
