package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/promised"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is an environment variable. If it is set, the test binary is the program, with this
// backend and an API server in memory. The server gets objects over standard input.
const asProgram = "NODEPROXY_BACKEND"

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
				_ = client.Tracker().Add(s)
			}
			for _, s := range o.Slices {
				_ = client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name,
					metav1.DeleteOptions{})
				_ = client.Tracker().Add(s)
			}
		}
	}()
	k, err := openKernel(os.Getenv(asProgram))
	if err != nil {
		return err
	}
	defer k.close()
	return run(ctx, client, k, options{node: "node1", healthz: netnstest.Net.NodeIPv4 + ":10256",
		metrics: netnstest.Net.NodeIPv4 + ":10249"})
}

func TestServicesOfTheAPIServerBecomeConnections(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			becomeConnections(t, backend)
		})
	}
}

func becomeConnections(t *testing.T, backend string) {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(servicemodel.TCP, 8080))
	}
	proxy := exec.Command("/proc/self/exe")
	proxy.Env = append(os.Environ(), asProgram+"="+backend)
	log, err := os.CreateTemp(t.TempDir(), "log")
	require.NoError(t, err)
	defer log.Close()
	proxy.Stderr = log
	in, err := proxy.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Node.NS.Do(proxy.Start))
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s %v", text, err)
		}
	})
	send := json.NewEncoder(in)
	answers := func(from *netnstest.Host, to, want string) {
		t.Helper()
		var got netnstest.Outcome
		require.Eventually(t, func() bool {
			got = netnstest.Probe{From: from, Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort(to)}.Send(t.Context())
			return string(got.Kind)+" "+got.Server == want
		}, time.Minute, 20*time.Millisecond, "%s from %s: want %s", to, from.Name, want)
	}

	restricted := service() // at load balancer IPs, of which it has none
	restricted.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	require.NoError(t, send.Encode(objects{Services: []*corev1.Service{restricted},
		Slices: []*discoveryv1.EndpointSlice{slice(c.Pods[0].IPv4)}}))
	answers(c.Pods[1], "10.96.0.10:80", "answered pod1")
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log.Name())
		return err == nil && strings.Contains(string(text),
			`msg="state warning" service=default/web field=loadBalancerSourceRanges `)
	}, time.Minute, 20*time.Millisecond)
	answers(c.Outside[0], netnstest.Net.NodeIPv4+":30080", "answered pod1")
	says(t, c.Node, "32000", "200 OK")
	says(t, c.Node, "10256/healthz", `"nodeEligible":true`)

	require.NoError(t, send.Encode(objects{Slices: []*discoveryv1.EndpointSlice{
		slice(c.Pods[2].IPv4)}}))
	answers(c.Pods[1], "10.96.0.10:80", "answered pod3")
	require.NoError(t, send.Encode(objects{Slices: []*discoveryv1.EndpointSlice{slice()}}))
	answers(c.Pods[1], "10.96.0.10:80", "refused ")
	says(t, c.Node, "32000", "503 Service Unavailable")
	text, err := get(c.Node, "10249/metrics")
	require.NoError(t, err)
	requireMetrics(t, text)
	says(t, c.Node, "10256/livez", "200 OK")
	text, err = get(c.Node, "10249/metrics")
	require.NoError(t, err)
	promised.Check(t, "../..", "nodeproxy", text)

	require.NoError(t, proxy.Process.Kill())
	_ = proxy.Wait()
	require.NoError(t, c.Node.NS.Do(func() error {
		return start(t.Context(), options{backend: backend, cleanup: true})
	}))
	answers(c.Outside[0], netnstest.Net.NodeIPv4+":30080", "refused ")
}

// get sends an HTTP request to a port and path of a node, and returns the status and the body.
func get(node *netnstest.Host, what string) (answer string, err error) {
	return nstest.Get(node.NS, node.IPv4.String()+":"+what)
}

// says waits until a node's answer contains a text, because answers follow the kernel's changes.
func says(t *testing.T, node *netnstest.Host, what, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		answer, err := get(node, what)
		return err == nil && strings.Contains(answer, text)
	}, time.Minute, 20*time.Millisecond, "%s: %s", what, text)
}

// requireMetrics requires the metrics of kube-proxy's dashboard, and counts that include the test's
// work.
func requireMetrics(t *testing.T, text string) {
	t.Helper()
	for _, line := range []string{
		`kubeproxy_sync_proxy_rules_service_changes_total 1`,
		`kubeproxy_proxy_healthz_total{code="200"} [1-9]`,
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} [1-3]`,
		`kernlb_refused_services 0`,
		`kernlb_conntrack_entries `,
		`process_resident_memory_bytes `,
		`process_cpu_seconds_total `,
		`go_goroutines `,
	} {
		require.True(t, regexp.MustCompile(`(?m)^`+line).MatchString(text), line)
	}
}

// Requests to the API server are counted as in kube-proxy, which uses the same library.
func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	require.Error(t, err)
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	labels := map[string]string{}
	for _, f := range families {
		for _, l := range f.Metric[0].Label {
			labels[f.GetName()+" "+l.GetName()] = l.GetValue()
		}
	}
	require.Equal(t, "404", labels["rest_client_requests_total code"])
	require.Equal(t, "GET", labels["rest_client_request_duration_seconds verb"])
}
