package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

var web = metav1.ObjectMeta{Namespace: "default", Name: "web",
	Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}

func service() *corev1.Service {
	local := corev1.ServiceExternalTrafficPolicyLocal
	return &corev1.Service{ObjectMeta: web, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: local,
		HealthCheckNodePort: 32000, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{
			{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}}}
}

func slice(pods ...netip.Addr) *discoveryv1.EndpointSlice {
	name, port, protocol, node := "", int32(8080), corev1.ProtocolTCP, "node1"
	meta := web
	meta.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node,
			Addresses: []string{p.String()}})
	}
	return s
}

// The API server and the kernel are in memory.
func TestServicesWithoutAKernel(t *testing.T) {
	t.Parallel()
	pod := netip.MustParseAddr("10.244.1.1")
	client := fake.NewClientset(service(), slice(pod), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}})
	held := &memory.Kernel{}
	backend := memory.New(held)
	backend.Refuse(nftables.Check)
	o := options{node: "node1", healthz: free(t), metrics: free(t)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, client, &kernel{backend: backend}, o) }()
	decides := func() string {
		return held.Table().Decide(servicemodel.Packet{Protocol: servicemodel.TCP,
			Src: netip.MustParseAddrPort("10.244.1.9:40000"),
			Dst: netip.MustParseAddrPort("10.96.0.10:80")}, nil).String()
	}
	requireSoon(t, "balanced over 10.244.1.1:8080", decides)
	requireSoon(t, `200 OK {"lastUpdated"`, func() string { return page(o.healthz + "/healthz") })
	requireSoon(t, "kernlb_refused_services 0", func() string {
		return page(o.metrics + "/metrics")
	})

	// The watches of the client may begin late, so an object is written until it is seen.
	asks := service() // for what nftables lacks: the service stays as it was
	asks.Annotations = map[string]string{"kernlb.io/scheduler": "sed"}
	requireSoon(t, `"refused":[{`, func() string {
		_, err := client.CoreV1().Services("default").Update(ctx, asks, metav1.UpdateOptions{})
		require.NoError(t, err)
		return page(o.healthz + "/healthz")
	})
	require.Contains(t, decides(), "balanced over 10.244.1.1:8080")
	for want, s := range map[string]*discoveryv1.EndpointSlice{
		"balanced over 10.244.1.2:8080": slice(pod.Next()), "rejected": slice()} {
		requireSoon(t, want, func() string {
			_, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, s,
				metav1.UpdateOptions{})
			require.NoError(t, err)
			return decides()
		})
	}
	before := decides()
	stop()
	require.Error(t, <-ended)
	require.Equal(t, before, decides(), "the kernel goes on")
}

// requireSoon waits until get returns a text that contains want.
func requireSoon(t *testing.T, want string, get func() string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, get(), want) },
		time.Minute, 5*time.Millisecond)
}

// page returns the status and the body of a page, or the error.
func page(url string) string {
	answer, err := http.Get("http://" + url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.Status + " " + string(body)
}

// free returns an address at which no program listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestTheNameOfTheBackendIsChecked(t *testing.T) {
	t.Parallel()
	require.EqualError(t, start(t.Context(), options{backend: "pf"}),
		`-backend: "pf": want nftables, iptables or ipvs`)
}
