package validation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	apicore "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	apidiscovery "k8s.io/kubernetes/pkg/apis/discovery/v1"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// objects is how many random objects are judged by both.
const objects = 20000

// random picks among values.
type random struct{ *rand.Rand }

func pick[T any](r random, values ...T) T { return values[r.IntN(len(values))] }

func some[T any](r random, values ...T) *T {
	if r.IntN(3) == 0 {
		return nil
	}
	v := pick(r, values...)
	return &v
}

// service returns a Service with some fields that may be wrong. Where an API server asks what it
// knows of other objects (is the address free, the node port in range), nothing is wrong.
func (r random) service() *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10",
			Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for range 1 + r.IntN(2) {
		pick(r, serviceChanges...)(r, s)
	}
	return s
}

var serviceChanges = []func(random, *corev1.Service){
	func(r random, s *corev1.Service) {
		s.Spec.Type = pick(r, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
			corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName, "Cluster", "")
	},
	func(r random, s *corev1.Service) {
		s.Spec.ExternalName = pick(r, "db.example", "db.example.", "-", "A")
	},
	func(r random, s *corev1.Service) {
		s.Name = pick(r, "web", "1web", "Web", "we_b", "web.a", strings.Repeat("a", 64))
	},
	func(r random, s *corev1.Service) { s.Namespace = pick(r, "default", "a.b", "Default") },
	func(r random, s *corev1.Service) {
		s.Labels = map[string]string{pick(r, "app", "a b", "a/b", "a/b/c"): pick(r, "x", "!", "")}
	},
	func(r random, s *corev1.Service) {
		s.Annotations = map[string]string{pick(r, "app", "a b",
			corev1.AnnotationLoadBalancerSourceRangesKey): pick(r, "", "10.0.0.0/8")}
	},
	func(r random, s *corev1.Service) {
		s.Annotations = map[string]string{corev1.AnnotationTopologyMode: pick(r, "Auto", "a"),
			corev1.DeprecatedAnnotationTopologyAwareHints: pick(r, "Auto", "a")}
	},
	func(r random, s *corev1.Service) {
		s.Spec.Selector = map[string]string{pick(r, "app", "-", "a/b"): pick(r, "x", "!", "")}
	},
	func(r random, s *corev1.Service) {
		both := []string{"10.96.0.10", "fd00:96::10"}
		s.Spec.ClusterIPs, s.Spec.ClusterIP = both, both[0]
		s.Spec.IPFamilies = pick(r, nil, []corev1.IPFamily{"IPv4", "IPv6"},
			[]corev1.IPFamily{"IPv6", "IPv4"}, []corev1.IPFamily{"IPv4", "IPv4"})
		s.Spec.IPFamilyPolicy = new(pick(r, corev1.IPFamilyPolicyPreferDualStack,
			corev1.IPFamilyPolicyRequireDualStack, "Dual"))
	},
	func(r random, s *corev1.Service) {
		ip := pick(r, "None", "x", "10.96.0.010", "::ffff:10.96.0.10", "fd00:96::10")
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, pick(r, nil, []string{ip},
			[]string{ip, "10.96.0.11"}, []string{"10.96.0.11"})
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		s.Spec.IPFamilies = nil
	},
	func(r random, s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: pick(r, "a", "", "A"),
			Port: pick(r, int32(80), 81, 0, 70000)})
		s.Spec.Ports[0].Name = pick(r, "a", "b", "")
	},
	func(r random, s *corev1.Service) { s.Spec.Ports = nil },
	func(r random, s *corev1.Service) {
		if len(s.Spec.Ports) == 0 {
			return
		}
		p := &s.Spec.Ports[0]
		p.Protocol = pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP, "tcp", "")
		p.NodePort = pick(r, int32(0), 30080)
		p.AppProtocol = some(r, "http", "a/b", "a b", "")
		p.TargetPort = pick(r, intstr.FromInt32(8080), intstr.FromInt32(0), intstr.FromInt32(-1),
			intstr.FromString("http"), intstr.FromString("Http!"), intstr.FromString(""))
	},
	func(r random, s *corev1.Service) {
		s.Spec.SessionAffinity = pick(r, corev1.ServiceAffinityClientIP,
			corev1.ServiceAffinityNone, "Client", "")
		s.Spec.SessionAffinityConfig = pick(r, nil, &corev1.SessionAffinityConfig{},
			&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
				TimeoutSeconds: some(r, int32(1), 0, 86400, 86401)}})
	},
	func(r random, s *corev1.Service) {
		s.Spec.ExternalIPs = []string{pick(r, "192.0.2.1", "192.0.2.01", "x", "127.0.0.1",
			"0.0.0.0", "169.254.1.1", "::ffff:192.0.2.1", "224.0.0.1")}
	},
	func(r random, s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{pick(r, "192.0.2.0/24", " 192.0.2.0/24 ", "x",
			"192.0.2.1/24", "192.0.2.0/33", "010.0.0.0/8", "::ffff:192.0.2.0/120")}
	},
	func(r random, s *corev1.Service) {
		s.Spec.AllocateLoadBalancerNodePorts = some(r, true, false)
		s.Spec.LoadBalancerClass = some(r, "a/b", "a b", "a")
	},
	func(r random, s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = pick(r, corev1.ServiceExternalTrafficPolicyLocal,
			corev1.ServiceExternalTrafficPolicyCluster, "local", "")
		s.Spec.HealthCheckNodePort = pick(r, int32(0), 32000, -1)
	},
	func(r random, s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = some(r, corev1.ServiceInternalTrafficPolicyLocal, "local")
		s.Spec.TrafficDistribution = some(r, "PreferClose", "PreferSameNode", "Close")
	},
	func(r random, s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{
			IP:       pick(r, "", "203.0.113.1", "203.0.113.01", "x"),
			IPMode:   some(r, corev1.LoadBalancerIPModeProxy, "vip"),
			Hostname: pick(r, "", "a.b", "A", "1.2.3.4")}}
	},
}

// apiService is what an API server says of a Service that is created with its status.
func apiService(t *testing.T, s *corev1.Service) (errs field.ErrorList) {
	s = s.DeepCopy()
	apicore.SetObjectDefaults_Service(s)
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 { // normalizeClusterIPs
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && local && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = 32000 // allocated
	}
	for i := range s.Status.LoadBalancer.Ingress {
		if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
			in.IPMode = new(corev1.LoadBalancerIPModeVIP)
		}
	}
	var out core.Service
	require.NoError(t, apicore.Convert_v1_Service_To_core_Service(s, &out, nil))
	errs = corevalidation.ValidateServiceCreate(&out)
	return append(errs, corevalidation.ValidateLoadBalancerStatus(&out.Status.LoadBalancer, nil,
		field.NewPath("status", "loadBalancer"), &out.Spec)...)
}

// slice returns an EndpointSlice with some fields that may be wrong.
func (r random) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080)), Name: new("http")}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
	}
	for range 1 + r.IntN(2) {
		pick(r, sliceChanges...)(r, s)
	}
	return s
}

var sliceChanges = []func(random, *discoveryv1.EndpointSlice){
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Name = pick(r, "web.1", "Web", "we_b", "-")
		s.Labels[pick(r, "a", "a b")] = pick(r, "", "!")
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Labels[discoveryv1.LabelServiceName] = pick(r, "web", "Web", "w b")
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.AddressType = pick(r, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN, "IP")
		s.Endpoints[0].Addresses[0] = pick(r, "fd00::1", "fd00::01", "a.b.c", "a", "::ffff:1.2.3.4")
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, pick(r, "10.1.0.1", "10.1.0.01",
			"x", "fd00::1", "127.0.0.1", "0.0.0.0", "169.254.0.1", "224.0.0.1", "::ffff:10.1.0.1"))
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: pick(r, nil,
			[]string{"10.1.0.2"}, make([]string, 101))})
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].NodeName = some(r, "a", "A", "a.b")
		s.Endpoints[0].Hostname = some(r, "a", "A", "a.b")
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		h := &discoveryv1.EndpointHints{}
		for range r.IntN(10) {
			h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: fmt.Sprint(pick(r, "a", "!",
				"z"), r.IntN(20))})
		}
		for range r.IntN(10) {
			h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: fmt.Sprint(pick(r, "a", "N",
				"z"), r.IntN(20))})
		}
		s.Endpoints[0].Hints = h
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: some(r, "http", "b", "A", ""),
			Protocol: some(r, corev1.ProtocolTCP, corev1.ProtocolUDP, "tcp"),
			Port:     new(int32(9090)), AppProtocol: some(r, "http", "a b")})
	},
	func(r random, s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].DeprecatedTopology = map[string]string{
			pick(r, "a", "a b"): pick(r, "a", "!")}
	},
}

// apiSlice is what an API server says of an EndpointSlice.
func apiSlice(t *testing.T, s *discoveryv1.EndpointSlice) field.ErrorList {
	s = s.DeepCopy()
	apidiscovery.SetObjectDefaults_EndpointSlice(s)
	var out discovery.EndpointSlice
	require.NoError(t,
		apidiscovery.Convert_v1_EndpointSlice_To_discovery_EndpointSlice(s, &out, nil))
	return discoveryvalidation.ValidateEndpointSliceCreate(&out)
}

// Strict trackers refuse what an API server refuses, and nothing else.
func TestStrictTrackersAreAPIServers(t *testing.T) {
	t.Parallel()
	refused := 0
	judge := func(seed uint64, object any, api field.ErrorList, problems []kube.Problem) {
		var ours []string
		for _, p := range problems {
			if !p.Warning {
				ours = append(ours, p.Error())
			}
		}
		if len(api) > 0 {
			refused++
		}
		if (len(api) > 0) != (len(ours) > 0) {
			require.Fail(t, "judged differently", "seed %d: %+v\nan API server: %v\nhere: %q", seed,
				object, api.ToAggregate(), ours)
		}
	}
	for seed := range uint64(objects) {
		r := random{rand.New(rand.NewPCG(seed, 0))}
		tracker := kube.NewTracker(kube.Config{Strict: true})
		service, slice := r.service(), r.slice()
		judge(seed, service, apiService(t, service), tracker.SetService(completed(service)))
		api := apiSlice(t, slice)
		for i := range slice.Ports {
			if p := &slice.Ports[i]; p.Name == nil {
				p.Name = new("")
			}
		}
		judge(seed, slice, api, tracker.SetEndpointSlice(slice))
	}
	require.Greater(t, refused, objects/2, "of two for each seed")
	require.Less(t, refused, objects*7/4)
}

// completed derives the list of cluster IPs from the single one, as a reader of manifests does; it
// also gives ports without a name the empty one.
func completed(s *corev1.Service) *corev1.Service {
	s = s.DeepCopy()
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	return s
}
