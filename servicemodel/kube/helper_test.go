package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

var web = servicemodel.Name{Namespace: "default", Name: "web"}

// webService returns a dual-stack service as an API server would return it.
func webService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			ClusterIP:       "10.96.0.10",
			ClusterIPs:      []string{"10.96.0.10", "fd00:96::10"},
			IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy:  ptr(corev1.IPFamilyPolicyRequireDualStack),
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP,
				Port: 80}},
		},
	}
}

// webModel returns the translation of webService.
func webModel() *servicemodel.Service {
	return &servicemodel.Service{
		Name: web,
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
			Port: 80}},
		ClusterIPs: must.Addrs("10.96.0.10", "fd00:96::10"),
	}
}

// webSlice returns an EndpointSlice of webService with an endpoint for each address.
func webSlice(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{
				discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(8080))}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true),
				Terminating: ptr(false)},
		})
	}

	return s
}

// webEndpoint returns the endpoint of webSlice for one address.
func webEndpoint(address string) servicemodel.Endpoint {
	return servicemodel.Endpoint{
		Addr: netip.MustParseAddr(address), Ports: httpOn(8080),
	}
}

func httpOn(port uint16) []servicemodel.EndpointPort {
	return []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: port}}
}

// texts returns problems as text, for comparison.
func texts(problems []kube.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Severity()+": "+p.Error())
	}
	return out
}

// contents is everything in a state.
type contents struct {
	node      servicemodel.Node
	services  []servicemodel.Service
	endpoints map[servicemodel.Name][]servicemodel.Endpoint
}

func contentsOf(s servicemodel.State) contents {
	c := contents{node: s.Node(), endpoints: map[servicemodel.Name][]servicemodel.Endpoint{}}
	for service := range s.Services() {
		c.services = append(c.services, *service)
		c.endpoints[service.Name] = s.Endpoints(service.Name)
	}

	return c
}

// requireNoProblems fails if an object has a problem.
func requireNoProblems(t *testing.T, problems []kube.Problem) {
	t.Helper()
	require.Empty(t, texts(problems))
}

// patched returns an object after a patch in YAML, which changes lists item by item.
func patched[T any](o *T, patch string) *T {
	if err := yaml.UnmarshalStrict([]byte(patch), o); err != nil {
		panic(err)
	}
	return o
}

func ptr[T any](v T) *T { return &v }
