package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

type endpoints = []servicemodel.Endpoint

// oneEndpoint returns the endpoint of webSlice after a change in YAML.
func oneEndpoint(change string) endpoints {
	e := webEndpoint("10.1.0.1")
	return endpoints{*patched(&e, change)}
}

const slicedPort = "ports[0].port: is missing, which means all ports and cannot be balanced, " +
	"the port is skipped"

// sliceCases are changes to an EndpointSlice with one endpoint, and the endpoint that results.
var sliceCases = []struct {
	name, given string
	want        endpoints
	problem     string // a warning
}{
	{"a plain slice", "", oneEndpoint(""), ""},
	{"the service-proxy-name label means nothing on slices",
		"metadata: {labels: {service.kubernetes.io/service-proxy-name: other}}",
		oneEndpoint(""), ""},
	{"a slice of a headless service",
		"metadata: {labels: {service.kubernetes.io/headless: ''}}", nil, ""},
	{"without the label of a service", "metadata: {labels: null}", nil,
		"metadata.labels[kubernetes.io/service-name]: names no service, the slice is skipped"},
	{"the label of another service",
		"metadata: {labels: {kubernetes.io/service-name: db}}", nil, ""},
	{"another namespace", "metadata: {namespace: other}", nil, ""},
	{"type FQDN", "{addressType: FQDN, endpoints: [{addresses: [example.com]}]}", nil, ""},
	{"IPv6", "{addressType: IPv6, endpoints: [{addresses: ['fd00::1']}]}",
		endpoints{webEndpoint("fd00::1")}, ""},

	{"a port without a name is skipped", "ports: [{name: null}]", nil,
		"ports[0].name: is missing, the port is skipped"},
	{"an empty port name is a name", "ports: [{name: ''}]",
		oneEndpoint("ports: [{name: ''}]"), ""},
	{"a port without a number is skipped", "ports: [{port: null}]", nil, slicedPort},
	{"port 0 is skipped", "ports: [{port: 0}]", nil,
		"ports[0].port: 0: must be between 1 and 65535"},
	{"a port that is skipped leaves the others",
		"ports: [{name: all, port: null}, {name: http, port: 8080}]", oneEndpoint(""), slicedPort},
	{"no protocol is TCP", "ports: [{protocol: null}]", oneEndpoint(""), ""},
	{"several ports", "ports: [{}, {name: dns, protocol: UDP, port: 53}, " +
		"{name: sig, protocol: SCTP, port: 36412}]",
		oneEndpoint("ports: [{}, {name: dns, protocol: udp, port: 53}, " +
			"{name: sig, protocol: sctp, port: 36412}]"), ""},
	{"one name with two protocols", "ports: [{}, {name: http, protocol: UDP, port: 8080}]",
		oneEndpoint("ports: [{}, {name: http, protocol: udp, port: 8080}]"), ""},

	{"only the first address counts", "endpoints: [{addresses: [10.1.0.1, 10.1.0.2, nonsense]}]",
		oneEndpoint(""), ""},
	{"an endpoint without an address is skipped", "endpoints: [{}, {}]", oneEndpoint(""),
		"endpoints[1].addresses: must hold an address"},
	{"leading zeros", "endpoints: [{addresses: [010.001.0.01]}]", oneEndpoint(""), ""},

	{"no conditions: ready, serving, not terminating", "endpoints: [{conditions: " +
		"{ready: null, serving: null, terminating: null}}]", oneEndpoint(""), ""},
	{"not ready, not serving", "endpoints: [{conditions: {ready: false, serving: false}}]",
		oneEndpoint("{ready: false, serving: false}"), ""},
	{"not ready, serving unknown", "endpoints: [{conditions: {ready: false, serving: null}}]",
		oneEndpoint("ready: false"), ""},
	{"terminating, still serving", "endpoints: [{conditions: {ready: false, terminating: true}}]",
		oneEndpoint("{ready: false, terminating: true}"), ""},
	{"ready and terminating, as not-ready addresses are published",
		"endpoints: [{conditions: {serving: false, terminating: true}}]",
		oneEndpoint("{serving: false, terminating: true}"), ""},

	{"node and zone", "endpoints: [{nodeName: node-a, zone: zone-1}]",
		oneEndpoint("{node: node-a, zone: zone-1}"), ""},
	{"hints", "endpoints: [{hints: {forZones: [{name: zone-1}, {name: zone-2}], " +
		"forNodes: [{name: node-a}]}}]",
		oneEndpoint("{forZones: [zone-1, zone-2], forNodes: [node-a]}"), ""},
	{"empty hints are none", "endpoints: [{hints: {}}]", oneEndpoint(""), ""},
	{"fields that mean nothing to a proxy", "{metadata: {annotations: " +
		"{endpoints.kubernetes.io/last-change-trigger-time: '2026-01-01T00:00:00Z'}}, " +
		"endpoints: [{hostname: web-0, targetRef: {kind: Pod, name: web-0}, " +
		"deprecatedTopology: {topology.kubernetes.io/zone: zone-9}}], ports: [{appProtocol: h2c}]}",
		oneEndpoint(""), ""},
}

func TestSliceWeights(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value    string
		weight   uint16
		quiesced bool
		problems []string
	}{
		{"20", 20, false, nil},
		{"0", 0, true, nil},
		{"-1", 0, false, []string{"warning: EndpointSlice default/web-1: " +
			"metadata.annotations[kernlb.io/weight]: -1: must be a number from 0 to 65535"}},
	} {
		tracker := kube.NewTracker(kube.Config{Annotations: "kernlb.io"})
		requireNoProblems(t, tracker.SetService(webService()))
		slice := webSlice("web-1", "10.1.0.1", "10.1.0.2")
		slice.Annotations = map[string]string{"kernlb.io/weight": tt.value}
		require.Equal(t, tt.problems, texts(tracker.SetEndpointSlice(slice)))
		for _, e := range tracker.State().Endpoints(web) {
			require.Equal(t, tt.weight, e.Weight, tt.value)
			require.Equal(t, tt.quiesced, e.Quiesced, tt.value)
		}
	}
}

func TestEndpointSlice(t *testing.T) {
	t.Parallel()
	for _, tt := range sliceCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService()))
			var want []string
			if tt.problem != "" {
				want = []string{"warning: EndpointSlice default/web-1: " + tt.problem}
			}
			slice := patched(webSlice("web-1", "10.1.0.1"), tt.given)
			require.Equal(t, want, texts(tracker.SetEndpointSlice(slice)))
			require.Equal(t, tt.want, tracker.State().Endpoints(web))
			require.NoError(t, tracker.State().Validate())
		})
	}
}

// invalidSlices are changes to an EndpointSlice that is then refused, and the reasons.
var invalidSlices = []struct{ name, given, want string }{
	{"no address type", "addressType: ''", "addressType: must be IPv4, IPv6 or FQDN"},
	{"unknown address type", "addressType: IP", "addressType: IP: must be IPv4, IPv6 or FQDN"},
	{"bad address", "endpoints: [{}, {addresses: [10.1.0]}]",
		"endpoints[1].addresses[0]: 10.1.0: not an IP address"},
	{"address of the other family", "endpoints: [{}, {addresses: ['fd00::1']}]",
		"endpoints[1].addresses[0]: fd00::1: must be an IPv4 address, as addressType says"},
	{"loopback address", "endpoints: [{addresses: [127.0.0.1]}]",
		"endpoints[0].addresses[0]: 127.0.0.1: may not be a loopback address"},
	{"unspecified address", "endpoints: [{addresses: [0.0.0.0]}]",
		"endpoints[0].addresses[0]: 0.0.0.0: may not be unspecified"},
	{"link-local address", "endpoints: [{addresses: [169.254.1.1]}]",
		"endpoints[0].addresses[0]: 169.254.1.1: may not be a link-local address"},
	{"unknown protocol", "ports: [{protocol: QUIC}]",
		"ports[0].protocol: QUIC: must be TCP, UDP or SCTP"},
	{"bad port name", "ports: [{name: A}]", "ports[0].name: A: a lowercase RFC 1123 label must"},
	{"duplicate port", "ports: [{}, {name: http, protocol: TCP, port: 8080}]",
		"ports[1].name: http: is the name of ports[0] too, with the same protocol"},
	{"bad name", "metadata: {name: web 1}",
		"metadata.name: web 1: a lowercase RFC 1123 subdomain must"},
}

func TestInvalidEndpointSliceKeepsOut(t *testing.T) {
	t.Parallel()
	for _, tt := range invalidSlices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker := kube.NewTracker(kube.Config{})
			requireNoProblems(t, tracker.SetService(webService()))
			requireNoProblems(t,
				tracker.SetEndpointSlice(webSlice("web-1", "10.1.0.1", "10.1.0.2")))
			requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-2", "10.1.0.3")))

			slice := patched(webSlice("web-1", "10.1.0.1", "10.1.0.2"), tt.given)
			problems := tracker.SetEndpointSlice(slice)
			require.Len(t, problems, 1)
			require.False(t, problems[0].Warning)
			require.Contains(t, problems[0].Error(), tt.want)
			if slice.Name == "web-1" {
				other := endpoints{webEndpoint("10.1.0.3")}
				require.Equal(t, other, tracker.State().Endpoints(web),
					"the other slice is not spoiled")
			}
		})
	}
}

func TestStrictRefusesPortZeroInSlice(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(kube.Config{Strict: true})
	slice := webSlice("web-1", "10.1.0.1")
	slice.Ports[0].Port = ptr(int32(0))
	slice.Endpoints[0].Addresses = nil
	require.Equal(t, []string{
		"error: EndpointSlice default/web-1: ports[0].port: 0: must be between 1 and 65535",
		"error: EndpointSlice default/web-1: endpoints[0].addresses: must hold an address",
	}, texts(tracker.SetEndpointSlice(slice)))
}

func endpointOn(port uint16, address string) servicemodel.Endpoint {
	e := webEndpoint(address)
	e.Ports = httpOn(port)
	return e
}

// slicesOfOneService are the EndpointSlices a and b of one service with the endpoint 10.1.0.1 each,
// their changes in YAML, and the endpoints that result from both.
var slicesOfOneService = []struct {
	name, a, b string
	want       endpoints
}{
	{"endpoints of all slices, in the order of the slices' names",
		"endpoints: [{addresses: [10.1.0.3]}, {addresses: [10.1.0.1]}]",
		"endpoints: [{addresses: [10.1.0.2]}]",
		endpoints{webEndpoint("10.1.0.3"), webEndpoint("10.1.0.1"), webEndpoint("10.1.0.2")}},
	{"a named target port may differ by slice", "",
		"{endpoints: [{addresses: [10.1.0.2]}], ports: [{port: 9090}]}",
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.2")}},
	{"one address with two numbers is two endpoints", "", "ports: [{port: 9090}]",
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.1")}},
	{"an endpoint in two slices is one", "", "endpoints: [{}, {addresses: [10.1.0.2]}]",
		endpoints{webEndpoint("10.1.0.1"), webEndpoint("10.1.0.2")}},
	{"an endpoint twice in one slice is one", "endpoints: [{}, {addresses: [10.1.0.01]}]",
		"endpoints: null", oneEndpoint("")},
	{"the ports that the other slice lacks stay", "",
		"ports: [{}, {name: dns, protocol: UDP, port: 53}]",
		append(oneEndpoint(""),
			oneEndpoint("ports: [{name: dns, protocol: udp, port: 53}]")...)},
	{"ready wins over not ready", "endpoints: [{conditions: {ready: false, serving: false}}]", "",
		oneEndpoint("")},
	{"not terminating wins over terminating", "endpoints: [{conditions: {terminating: true}}]",
		"endpoints: [{conditions: {ready: false}}]", oneEndpoint("ready: false")},
	{"serving wins over not serving", "endpoints: [{conditions: {ready: false, serving: false}}]",
		"endpoints: [{conditions: {ready: false}}]", oneEndpoint("ready: false")},
}

func TestSlicesOfOneService(t *testing.T) {
	t.Parallel()
	for _, tt := range slicesOfOneService {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			given := []*discoveryv1.EndpointSlice{patched(webSlice("a", "10.1.0.1"), tt.a),
				patched(webSlice("b", "10.1.0.1"), tt.b)}
			for _, first := range []int{0, 1} {
				tracker := kube.NewTracker(kube.Config{})
				requireNoProblems(t, tracker.SetService(webService()))
				requireNoProblems(t, tracker.SetEndpointSlice(given[first]))
				requireNoProblems(t, tracker.SetEndpointSlice(given[1-first]))
				require.Equal(t, tt.want, tracker.State().Endpoints(web))
			}
		})
	}
}
