package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// asProgram makes the test binary the program, with an API server in memory. The server has these
// objects at first, and gets others over standard input.
const asProgram = "NODEPROXY_OBJECTS"

type objects struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
}

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		netnstest.Main(m)
		return
	}
	if err := program(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program is nodeproxy with an API server in memory.
func program(ctx context.Context) error {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{netnstest.Net.NodeCIDRv4}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: netnstest.Net.NodeIPv4}}}})
	go func() {
		d := json.NewDecoder(os.Stdin)
		for {
			var o objects
			if d.Decode(&o) != nil {
				return
			}
			for _, s := range o.Services {
				_, _ = client.CoreV1().Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
			}
			for _, s := range o.Slices {
				_ = client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name,
					metav1.DeleteOptions{})
				_, _ = client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, s,
					metav1.CreateOptions{})
			}
		}
	}()
	return run(ctx, client, options{node: "node1", healthz: netnstest.Net.NodeIPv4 + ":10256",
		metrics: netnstest.Net.NodeIPv4 + ":10249"})
}

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

func slice(pods ...*netnstest.Host) *discoveryv1.EndpointSlice {
	name, port, protocol, node := "", int32(8080), corev1.ProtocolTCP, "node1"
	meta := web
	meta.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node,
			Addresses: []string{p.IPv4.String()}})
	}
	return s
}

func TestServicesOfTheAPIServerBecomeConnections(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(netnstest.TCP, 8080))
	}
	proxy := exec.Command("/proc/self/exe")
	proxy.Env = append(os.Environ(), asProgram+"=1", "RUNTIME_DIRECTORY="+t.TempDir())
	proxy.Stderr = os.Stderr
	in, err := proxy.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Node.NS.Do(proxy.Start))
	t.Cleanup(func() { _ = proxy.Process.Kill() })
	send := json.NewEncoder(in)
	answers := func(from *netnstest.Host, to, want string) {
		t.Helper()
		var got netnstest.Outcome
		require.Eventually(t, func() bool {
			got = netnstest.Probe{From: from, Proto: netnstest.TCP,
				To: netip.MustParseAddrPort(to)}.Send(t.Context())
			return got.Kind.String()+" "+got.Server == want
		}, 20*time.Second, 20*time.Millisecond, "%s from %s: want %s", to, from.Name, want)
	}

	require.NoError(t, send.Encode(objects{Services: []*corev1.Service{service()},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0])}}))
	answers(c.Pods[1], "10.96.0.10:80", "answered pod1")
	answers(c.Outside[0], netnstest.Net.NodeIPv4+":30080", "answered pod1")
	says(t, c.Node, "32000", "200 OK")
	says(t, c.Node, "10256/healthz", `"nodeEligible":true`)

	require.NoError(t, send.Encode(objects{Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[2])}}))
	answers(c.Pods[1], "10.96.0.10:80", "answered pod3")
	require.NoError(t, send.Encode(objects{Slices: []*discoveryv1.EndpointSlice{slice()}}))
	answers(c.Pods[1], "10.96.0.10:80", "refused ")
	says(t, c.Node, "32000", "503 Service Unavailable")
	text, err := get(c.Node, "10249/metrics")
	require.NoError(t, err)
	requireMetrics(t, text)
}
