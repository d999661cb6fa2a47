package main

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
)

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
