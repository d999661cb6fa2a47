package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

const onlyLoadBalancer = "may only be given where spec.type is LoadBalancer"

// strictCases are changes to webService, in YAML, and the problems that a strict tracker reports of
// the Service. Other trackers accept it.
var strictCases = []struct {
	name, given string
	want        []string
}{
	{"what an API server returns", "", nil},
	{"a load balancer", "{spec: {type: LoadBalancer, loadBalancerIP: 203.0.113.1, " +
		"loadBalancerSourceRanges: [' 192.0.2.0/24 '], allocateLoadBalancerNodePorts: false}, " +
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}}", nil},
	{"addresses that are none", "{spec: {type: LoadBalancer, externalIPs: [x]}, " +
		"status: {loadBalancer: {ingress: [{ip: 'y'}]}}}",
		[]string{"error: spec.externalIPs[0]: x: not an IP address",
			"error: status.loadBalancer.ingress[0].ip: y: not an IP address"}},
	{"addresses that may be misread", "{spec: {type: LoadBalancer, " +
		"externalIPs: [192.0.2.010, '::ffff:192.0.2.11'], " +
		"loadBalancerSourceRanges: [192.0.2.1/24]}, " +
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}}", []string{
		"error: spec.externalIPs[0]: 192.0.2.010: must not have leading 0s",
		"error: spec.externalIPs[1]: ::ffff:192.0.2.11: must not be an IPv4-mapped IPv6 address",
		"error: spec.loadBalancerSourceRanges[0]: 192.0.2.1/24: must not have bits set beyond " +
			"the prefix length"}},
	{"node ports of a cluster IP", "spec: {ports: [{nodePort: 30080}]}",
		[]string{"error: spec.ports[0].nodePort: 30080: may only be given where spec.type is " +
			"NodePort or LoadBalancer"}},
	{"what load balancers have", "{spec: {type: NodePort, loadBalancerClass: a b, " +
		"loadBalancerSourceRanges: [192.0.2.0/24], allocateLoadBalancerNodePorts: true}, " +
		"status: {loadBalancer: {ingress: [{hostname: lb.example}]}}}", []string{
		"error: spec.loadBalancerClass: a b: name part must consist of alphanumeric characters",
		"error: spec.loadBalancerSourceRanges: " + onlyLoadBalancer,
		"error: spec.allocateLoadBalancerNodePorts: " + onlyLoadBalancer,
		"error: status.loadBalancer.ingress: " + onlyLoadBalancer}},
	{"an external policy without external addresses",
		"spec: {externalTrafficPolicy: Local, healthCheckNodePort: 32000}", []string{
			"error: spec.externalTrafficPolicy: Local: may only be given where spec.type is " +
				"NodePort or LoadBalancer, or with external IPs",
			"error: spec.healthCheckNodePort: 32000: may only be given where spec.type is " +
				"LoadBalancer and spec.externalTrafficPolicy is Local"}},
	{"two families under SingleStack", "spec: {ipFamilyPolicy: null}",
		[]string{"error: spec.ipFamilyPolicy: SingleStack: must be PreferDualStack or " +
			"RequireDualStack where there are two families"}},
	{"ports", "spec: {ports: [{targetPort: 70000, appProtocol: ''}]}",
		[]string{"error: spec.ports[0].targetPort: 70000: must be between 1 and 65535",
			"error: spec.ports[0].appProtocol: name part must be non-empty"}},
	{"a headless node port",
		"spec: {type: NodePort, clusterIP: None, clusterIPs: [None], ipFamilies: null}",
		[]string{"error: spec.clusterIP: None: is not possible where spec.type is NodePort"}},
	{"an external name with an address", "spec: {type: ExternalName}", []string{
		"error: spec.externalName: a lowercase RFC 1123 subdomain",
		"error: spec.clusterIP: 10.96.0.10: may not be given where spec.type is ExternalName",
		"error: spec.ipFamilies: may not be given",
		"error: spec.ipFamilyPolicy: RequireDualStack: may not be given"}},
	{"metadata and selector", "{metadata: {labels: {app: a b}}, spec: {selector: {'-': x}}}",
		[]string{"error: metadata.labels: a b: a valid label must be",
			"error: spec.selector: -: name part must consist"}},
	{"what nobody heeds", "{metadata: {annotations: " +
		"{service.beta.kubernetes.io/load-balancer-source-ranges: 10.0.0.0/8}}, " +
		"spec: {type: LoadBalancer, loadBalancerIP: 203.0.113.1, " +
		"loadBalancerSourceRanges: [192.0.2.0/24], sessionAffinityConfig: {}}}", []string{
		"warning: spec.loadBalancerIP: 203.0.113.1: has no effect: the addresses of load " +
			"balancers are read from status.loadBalancer.ingress",
		"warning: spec.loadBalancerSourceRanges: restrict nobody: they are for the addresses in " +
			"status.loadBalancer.ingress, and there are none",
		"warning: metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: " +
			"10.0.0.0/8: has no effect; use spec.loadBalancerSourceRanges",
		"warning: spec.sessionAffinityConfig: has no effect where spec.sessionAffinity is not " +
			"ClientIP"}},
}

func TestStrictServices(t *testing.T) {
	t.Parallel()
	for _, tt := range strictCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			service := patched(webService(), tt.given)
			requireTexts(t, "Service default/web: ", tt.want,
				kube.NewTracker(kube.Config{Strict: true}).SetService(service))
			for _, p := range kube.NewTracker(kube.Config{}).SetService(service) {
				require.True(t, p.Warning, "only strict trackers refuse: %v", p)
			}
		})
	}
}

// requireTexts compares the problems of an object with the beginnings of their texts.
func requireTexts(t *testing.T, object string, want []string, problems []kube.Problem) {
	t.Helper()
	require.Len(t, problems, len(want), texts(problems))
	for i, p := range texts(problems) {
		require.Contains(t, p, object)
		p = strings.Replace(p, object, "", 1)
		require.True(t, strings.HasPrefix(p, want[i]), "%s\nis not\n%s", p, want[i])
	}
}

func TestStrictEndpoints(t *testing.T) {
	t.Parallel()
	slice := webSlice("web-1", "10.1.0.1", "10.1.0.2")
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr("http"),
		Protocol: ptr(corev1.ProtocolUDP), Port: ptr(int32(1)), AppProtocol: ptr("a b")})
	e := slice.Endpoints
	e[0].Addresses = append(e[0].Addresses, "10.1.0.03", "fd00::1", "127.0.0.1")
	e[0].NodeName, e[0].Hostname = ptr("A"), ptr("a.b")
	e[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"},
		{Name: "a"}, {Name: "!"}}, ForNodes: make([]discoveryv1.ForNode, 9)}
	requireTexts(t, "EndpointSlice default/web-1: ", []string{
		"error: ports[1].name: http: is the name of ports[0] too",
		"error: ports[1].appProtocol: a b: name part must consist",
		"error: endpoints[0].addresses[1]: 10.1.0.03: must not have leading 0s",
		"error: endpoints[0].addresses[2]: fd00::1: must be an IPv4 address, as addressType says",
		"error: endpoints[0].addresses[3]: 127.0.0.1: may not be a loopback address",
		"error: endpoints[0].hostname: a.b: must not contain dots",
		"error: endpoints[0].nodeName: A: a lowercase RFC 1123 subdomain",
		"error: endpoints[1].hints.forZones[1].name: a: is endpoints[1].hints.forZones[0] too",
		"error: endpoints[1].hints.forZones[2].name: !: a valid label must be",
		"error: endpoints[1].hints.forNodes: has 9 items, may have 8 at most",
	}, kube.NewTracker(kube.Config{Strict: true}).SetEndpointSlice(slice))

	legacy := webEndpoints(subset(8080, "10.1.0.1"), subset(8080))
	legacy.Subsets[0].Addresses[0].NodeName = ptr("A")
	legacy.Subsets[0].Ports = append(legacy.Subsets[0].Ports, corev1.EndpointPort{Port: 1})
	requireTexts(t, "Endpoints default/web: ", []string{
		"error: subsets[0].ports[1].name: must be given where there are several ports",
		"error: subsets[0].addresses[0].nodeName: A: a lowercase RFC 1123 subdomain",
		"error: subsets[1]: must have addresses or notReadyAddresses",
	}, kube.NewTracker(kube.Config{Strict: true}).SetEndpoints(legacy))
}

func TestUnmatched(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(kube.Config{})
	service := webService()
	service.Spec.ClusterIPs, service.Spec.IPFamilies = service.Spec.ClusterIPs[:1], nil
	requireNoProblems(t, tracker.SetService(service))
	headless := webService()
	headless.Name = "db"
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = "None", []string{"None"}
	requireNoProblems(t, tracker.SetService(headless))

	of := func(s *discoveryv1.EndpointSlice, service string) *discoveryv1.EndpointSlice {
		s.Labels[discoveryv1.LabelServiceName] = service
		return s
	}
	udp, six := webSlice("udp", "10.1.0.4"), webSlice("six", "fd00::1")
	udp.Ports[0].Protocol = ptr(corev1.ProtocolUDP)
	six.AddressType = discoveryv1.AddressTypeIPv6
	for _, s := range []*discoveryv1.EndpointSlice{webSlice("web", "10.1.0.1"), udp, six,
		of(webSlice("near", "10.1.0.2"), "wep"), of(webSlice("far", "10.1.0.3"), "other"),
		of(webSlice("headless", "10.1.0.5"), "db")} {
		requireNoProblems(t, tracker.SetEndpointSlice(s))
	}
	legacy := webEndpoints(subset(8080, "10.1.0.1"))
	legacy.Name = "wbe"
	requireNoProblems(t, tracker.SetEndpoints(legacy))

	const label = "metadata.labels[kubernetes.io/service-name]: "
	require.Equal(t, []string{
		"warning: EndpointSlice default/far: " + label + "other: there is no Service default/other",
		"warning: EndpointSlice default/near: " + label + "wep: there is no Service default/wep; " +
			"did you mean web?",
		"warning: EndpointSlice default/six: addressType: IPv6: Service default/web has no IPv6 " +
			"cluster IP",
		"warning: EndpointSlice default/udp: ports: http/udp: Service default/web has no port of " +
			"that name and protocol, it has http/tcp",
		"warning: Endpoints default/wbe: metadata.name: wbe: there is no Service default/wbe; " +
			"did you mean web?",
	}, texts(tracker.Unmatched()))
}
