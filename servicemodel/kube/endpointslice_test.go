package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

type endpoints = []servicemodel.Endpoint

// oneEndpoint returns the endpoint of webSlice after a change.
func oneEndpoint(change func(*servicemodel.Endpoint)) endpoints {
	e := webEndpoint("10.1.0.1")
	change(&e)
	return endpoints{e}
}

func conditions(ready, serving, terminating *bool) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ready,
			Serving: serving, Terminating: terminating}
	}
}

func sameEndpoint(*servicemodel.Endpoint) {}

// sliceCases are EndpointSlices with one endpoint, and the endpoint that results.
var sliceCases = []struct {
	name     string
	given    func(*discoveryv1.EndpointSlice)
	want     endpoints
	problems []string
}{
	{"a plain slice", func(*discoveryv1.EndpointSlice) {}, oneEndpoint(sameEndpoint), nil},
	{"the service-proxy-name label means nothing on slices",
		func(s *discoveryv1.EndpointSlice) {
			s.Labels["service.kubernetes.io/service-proxy-name"] = "other"
		}, oneEndpoint(sameEndpoint), nil},
	{"a slice of a headless service", func(s *discoveryv1.EndpointSlice) {
		s.Labels["service.kubernetes.io/headless"] = ""
	}, nil, nil},
	{"without the label of a service", func(s *discoveryv1.EndpointSlice) {
		s.Labels = nil
	}, nil, []string{
		"warning: EndpointSlice default/web-1: metadata.labels[kubernetes.io/service-name]: " +
			"names no service, the slice is skipped",
	}},
	{"the label of another service", func(s *discoveryv1.EndpointSlice) {
		s.Labels[discoveryv1.LabelServiceName] = "db"
	}, nil, nil},
	{"another namespace", func(s *discoveryv1.EndpointSlice) {
		s.Namespace = "other"
	}, nil, nil},
	{"type FQDN", func(s *discoveryv1.EndpointSlice) {
		s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeFQDN,
			[]string{"example.com"}
	}, nil, nil},
	{"IPv6", func(s *discoveryv1.EndpointSlice) {
		s.AddressType, s.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6,
			[]string{"fd00::1"}
	}, endpoints{webEndpoint("fd00::1")}, nil},

	{"a port without a name is skipped", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Name = nil
	}, nil,
		[]string{
			"warning: EndpointSlice default/web-1: ports[0].name: is missing, the port is " +
				"skipped"}},
	{"an empty port name is a name", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Name = ptr("")
	},
		oneEndpoint(func(e *servicemodel.Endpoint) {
			e.Ports = []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}
		}), nil},
	{"a port without a number is skipped", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Port = nil
	}, nil, []string{
		"warning: EndpointSlice default/web-1: ports[0].port: is missing, which means all " +
			"ports and cannot be balanced, the port is skipped",
	}},
	{"port 0 is skipped", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Port = ptr(int32(0))
	}, nil,
		[]string{
			"warning: EndpointSlice default/web-1: ports[0].port: 0: must be between 1 and " +
				"65535"}},
	{"a port that is skipped leaves the others", func(s *discoveryv1.EndpointSlice) {
		s.Ports = append([]discoveryv1.EndpointPort{{Name: ptr("all")}}, s.Ports...)
	}, oneEndpoint(sameEndpoint), []string{
		"warning: EndpointSlice default/web-1: ports[0].port: is missing, which means all " +
			"ports and cannot be balanced, the port is skipped",
	}},
	{"no protocol is TCP", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Protocol = nil
	}, oneEndpoint(sameEndpoint), nil},
	{"several ports", func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr("dns"),
			Protocol: ptr(corev1.ProtocolUDP), Port: ptr(int32(53))},
			discoveryv1.EndpointPort{Name: ptr("sig"), Protocol: ptr(corev1.ProtocolSCTP),
				Port: ptr(int32(36412))})
	}, oneEndpoint(func(e *servicemodel.Endpoint) {
		e.Ports = append(httpOn(8080), servicemodel.EndpointPort{Name: "dns",
			Protocol: servicemodel.UDP, Port: 53},
			servicemodel.EndpointPort{Name: "sig", Protocol: servicemodel.SCTP, Port: 36412})
	}), nil},
	{"one name with two protocols", func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr("http"),
			Protocol: ptr(corev1.ProtocolUDP), Port: ptr(int32(8080))})
	}, oneEndpoint(func(e *servicemodel.Endpoint) {
		e.Ports = append(httpOn(8080), servicemodel.EndpointPort{Name: "http",
			Protocol: servicemodel.UDP, Port: 8080})
	}), nil},

	{"only the first address counts", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses = []string{"10.1.0.1", "10.1.0.2", "nonsense"}
	}, oneEndpoint(sameEndpoint), nil},
	{"an endpoint without an address is skipped", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{})
	}, oneEndpoint(sameEndpoint),
		[]string{
			"warning: EndpointSlice default/web-1: endpoints[1].addresses: must hold an " +
				"address"}},
	{"leading zeros", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses = []string{"010.001.0.01"}
	}, oneEndpoint(sameEndpoint), nil},

	{"no conditions: ready, serving, not terminating", conditions(nil, nil, nil),
		oneEndpoint(sameEndpoint), nil},
	{"not ready, not serving", conditions(ptr(false), ptr(false), nil),
		oneEndpoint(func(e *servicemodel.Endpoint) { e.Ready, e.Serving = false, false }), nil},
	{"not ready, serving unknown", conditions(ptr(false), nil, nil),
		oneEndpoint(func(e *servicemodel.Endpoint) { e.Ready = false }), nil},
	{"terminating, still serving", conditions(ptr(false), ptr(true), ptr(true)),
		oneEndpoint(func(e *servicemodel.Endpoint) { e.Ready, e.Terminating = false, true }), nil},
	{"ready and terminating, as not-ready addresses are published",
		conditions(ptr(true), ptr(false), ptr(true)),
		oneEndpoint(func(e *servicemodel.Endpoint) {
			e.Serving, e.Terminating = false, true
		}), nil},

	{"node and zone", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].NodeName, s.Endpoints[0].Zone = ptr("node-a"), ptr("zone-1")
	}, oneEndpoint(func(e *servicemodel.Endpoint) { e.Node, e.Zone = "node-a", "zone-1" }), nil},
	{"hints", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "zone-1"}, {Name: "zone-2"}},
			ForNodes: []discoveryv1.ForNode{{Name: "node-a"}},
		}
	}, oneEndpoint(func(e *servicemodel.Endpoint) {
		e.ForZones, e.ForNodes = []string{"zone-1", "zone-2"}, []string{"node-a"}
	}), nil},
	{"empty hints are none", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{}
	}, oneEndpoint(sameEndpoint), nil},
	{"fields that mean nothing to a proxy", func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{
			"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}
		s.Endpoints[0].Hostname = ptr("web-0")
		s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}
		s.Endpoints[0].DeprecatedTopology = map[string]string{
			"topology.kubernetes.io/zone": "zone-9"}
		s.Ports[0].AppProtocol = ptr("h2c")
	}, oneEndpoint(sameEndpoint), nil},
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
			slice := webSlice("web-1", "10.1.0.1")
			tt.given(slice)
			require.Equal(t, tt.problems, texts(tracker.SetEndpointSlice(slice)))
			require.Equal(t, tt.want, tracker.State().Endpoints(web))
			require.NoError(t, tracker.State().Validate())
		})
	}
}

// invalidSlices are EndpointSlices that are refused, and the reasons.
var invalidSlices = []struct {
	name  string
	given func(*discoveryv1.EndpointSlice)
	want  string
}{
	{"no address type", func(s *discoveryv1.EndpointSlice) {
		s.AddressType = ""
	}, "addressType: must be IPv4, IPv6 or FQDN"},
	{"unknown address type", func(s *discoveryv1.EndpointSlice) {
		s.AddressType = "IP"
	}, "addressType: IP: must be IPv4, IPv6 or FQDN"},
	{"bad address", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[1].Addresses[0] = "10.1.0"
	},
		"endpoints[1].addresses[0]: 10.1.0: not an IP address"},
	{"address of the other family", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[1].Addresses[0] = "fd00::1"
	},
		"endpoints[1].addresses[0]: fd00::1: must be an IPv4 address, as addressType says"},
	{"loopback address", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = "127.0.0.1"
	},
		"endpoints[0].addresses[0]: 127.0.0.1: may not be a loopback address"},
	{"unspecified address", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = "0.0.0.0"
	},
		"endpoints[0].addresses[0]: 0.0.0.0: may not be unspecified"},
	{"link-local address", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = "169.254.1.1"
	},
		"endpoints[0].addresses[0]: 169.254.1.1: may not be a link-local address"},
	{"unknown protocol", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Protocol = ptr(corev1.Protocol("QUIC"))
	},
		"ports[0].protocol: QUIC: must be TCP, UDP or SCTP"},
	{"bad port name", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Name = ptr("A")
	}, "ports[0].name: A: a lowercase RFC 1123 label must"},
	{"duplicate port", func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, s.Ports[0])
	},
		"ports[1].name: http: is the name of ports[0] too, with the same protocol"},
	{"bad name", func(s *discoveryv1.EndpointSlice) {
		s.Name = "web 1"
	}, "metadata.name: web 1: a lowercase RFC 1123 subdomain must"},
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

			slice := webSlice("web-1", "10.1.0.1", "10.1.0.2")
			tt.given(slice)
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

type slices = []*discoveryv1.EndpointSlice

func sliceOnPort(s *discoveryv1.EndpointSlice, port int32) *discoveryv1.EndpointSlice {
	s.Ports[0].Port = ptr(port)
	return s
}

func sliceIn(ready, serving, terminating bool, s *discoveryv1.EndpointSlice,
) *discoveryv1.EndpointSlice {
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready,
			Serving: &serving, Terminating: &terminating}
	}
	return s
}

func sliceWithDNS(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr("dns"),
		Protocol: ptr(corev1.ProtocolUDP), Port: ptr(int32(53))})
	return s
}

func endpointOn(port uint16, address string) servicemodel.Endpoint {
	e := webEndpoint(address)
	e.Ports = httpOn(port)
	return e
}

func onlyDNS(address string) servicemodel.Endpoint {
	e := webEndpoint(address)
	e.Ports = []servicemodel.EndpointPort{{Name: "dns", Protocol: servicemodel.UDP, Port: 53}}
	return e
}

func notReady(address string) servicemodel.Endpoint {
	e := webEndpoint(address)
	e.Ready = false
	return e
}

// slicesOfOneService are EndpointSlices of one service, and the endpoints that result from all of
// them.
var slicesOfOneService = []struct {
	name  string
	given slices
	want  endpoints
}{
	{"endpoints of all slices, in the order of the slices' names",
		slices{webSlice("b", "10.1.0.2"), webSlice("a", "10.1.0.3", "10.1.0.1")},
		endpoints{webEndpoint("10.1.0.3"), webEndpoint("10.1.0.1"),
			webEndpoint("10.1.0.2")}},
	{"a named target port may differ by slice", slices{webSlice("a", "10.1.0.1"),
		sliceOnPort(webSlice("b", "10.1.0.2"), 9090)},
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.2")}},
	{"one address with two numbers is two endpoints", slices{webSlice("a", "10.1.0.1"),
		sliceOnPort(webSlice("b", "10.1.0.1"), 9090)},
		endpoints{webEndpoint("10.1.0.1"), endpointOn(9090, "10.1.0.1")}},
	{"an endpoint in two slices is one", slices{webSlice("a", "10.1.0.1"),
		webSlice("b", "10.1.0.1", "10.1.0.2")},
		endpoints{webEndpoint("10.1.0.1"), webEndpoint("10.1.0.2")}},
	{"an endpoint twice in one slice is one", slices{webSlice("a", "10.1.0.1", "10.1.0.01")},
		endpoints{webEndpoint("10.1.0.1")}},
	{"the ports that the other slice lacks stay",
		slices{webSlice("a", "10.1.0.1"), sliceWithDNS(webSlice("b", "10.1.0.1"))},
		endpoints{webEndpoint("10.1.0.1"), onlyDNS("10.1.0.1")}},
	{"ready wins over not ready",
		slices{sliceIn(false, false, false, webSlice("a", "10.1.0.1")),
			webSlice("b", "10.1.0.1")},
		endpoints{webEndpoint("10.1.0.1")}},
	{"not terminating wins over terminating", slices{
		sliceIn(true, true, true, webSlice("a", "10.1.0.1")),
		sliceIn(false, true, false, webSlice("b", "10.1.0.1")),
	}, endpoints{notReady("10.1.0.1")}},
	{"serving wins over not serving", slices{
		sliceIn(false, false, false, webSlice("a", "10.1.0.1")),
		sliceIn(false, true, false, webSlice("b", "10.1.0.1")),
	}, endpoints{notReady("10.1.0.1")}},
}

func TestSlicesOfOneService(t *testing.T) {
	t.Parallel()
	for _, tt := range slicesOfOneService {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][]int{{0, 1}, {1, 0}} {
				tracker := kube.NewTracker(kube.Config{})
				requireNoProblems(t, tracker.SetService(webService()))
				for _, i := range order {
					if i < len(tt.given) {
						requireNoProblems(t, tracker.SetEndpointSlice(tt.given[i]))
					}
				}
				require.Equal(t, tt.want, tracker.State().Endpoints(web))
			}
		})
	}
}

func TestSliceMovesToAnotherService(t *testing.T) {
	t.Parallel()
	db := servicemodel.Name{Namespace: "default", Name: "db"}
	tracker := kube.NewTracker(kube.Config{})
	other := webService()
	other.Name, other.Spec.ClusterIP, other.Spec.ClusterIPs = "db", "10.96.0.11",
		[]string{"10.96.0.11", "fd00:96::11"}
	requireNoProblems(t, tracker.SetService(webService()))
	requireNoProblems(t, tracker.SetService(other))
	slice := webSlice("web-1", "10.1.0.1")
	requireNoProblems(t, tracker.SetEndpointSlice(slice))
	require.Len(t, tracker.State().Endpoints(web), 1)

	slice.Labels[discoveryv1.LabelServiceName] = "db"
	requireNoProblems(t, tracker.SetEndpointSlice(slice))
	require.Empty(t, tracker.State().Endpoints(web))
	require.Len(t, tracker.State().Endpoints(db), 1)

	tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: "web-1"})
	require.Empty(t, tracker.State().Endpoints(db))
}
