package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	k8smetrics "k8s.io/component-base/metrics"
	kubeproxy "k8s.io/kubernetes/pkg/proxy/metrics"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// The served metrics of kube-proxy in docs/metrics.md exist in the kube-proxy that this module
// builds, with the same types, labels and help, and histograms with the same buckets. All other
// metrics of kube-proxy are in the document's table of metrics that are not served.
func TestMetricsAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	served, missing := rows(t, "kubeproxy"), rows(t, "not served")
	theirs, ours := proxyFamilies(t), ownFamilies(t)
	for name, row := range served {
		f := theirs[name]
		require.NotNil(t, f, "kube-proxy has no %s", name)
		require.Equal(t, described(f), row[:3], name)
		if f.GetType() == dto.MetricType_HISTOGRAM {
			require.NotNil(t, ours[name], "%s: the story of this test leaves it out", name)
			require.Equal(t, buckets(f), buckets(ours[name]), name)
		}
	}

	require.NotEmpty(t, served)
	source := sourceNames(t)
	for _, name := range source {
		if _, found := served[name]; !found {
			require.Contains(t, missing, name, "docs/metrics.md says nothing of it")
		}
	}

	for name, row := range missing {
		require.NotContains(t, served, name)
		require.Contains(t, source, name, "kube-proxy has none of that name")
		require.NotEmpty(t, row[0], "%s: why is it not served?", name)
	}
}

// rows returns the rows of a table of docs/metrics.md, by the name of the metric.
func rows(t *testing.T, table string) map[string][]string {
	t.Helper()
	text := must.OK(os.ReadFile("../../../docs/metrics.md"))(t)
	_, rest, found := strings.Cut(string(text), "<!-- "+table+" -->\n")
	require.True(t, found)
	body, _, found := strings.Cut(rest, "<!-- end -->")
	require.True(t, found)
	all := map[string][]string{}
	for l := range strings.Lines(body) {
		cells := strings.Split(strings.Trim(l, "| \n"), " | ")
		if name, quoted := strings.CutPrefix(cells[0], "`"); quoted {
			all[strings.TrimSuffix(name, "`")] = cells[1:]
		}
	}

	return all
}

// described returns a metric as in the document: type, labels, and help without the stability level
// that component-base prepends.
func described(f *dto.MetricFamily) []string {
	var labels []string
	for _, l := range f.Metric[0].Label {
		labels = append(labels, "`"+l.GetName()+"`")
	}
	return []string{strings.ToLower(f.GetType().String()), strings.Join(labels, ", "),
		strings.TrimPrefix(f.GetHelp(), "[ALPHA] ")}
}

func buckets(f *dto.MetricFamily) (l []float64) {
	for _, b := range f.Metric[0].Histogram.Bucket {
		l = append(l, b.GetUpperBound())
	}
	return l
}

// sourceNames returns the names of all metrics in the source of kube-proxy's package metrics.
func sourceNames(t *testing.T) (names []string) {
	t.Helper()
	dir := must.OK(exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}",
		"k8s.io/kubernetes/pkg/proxy/metrics").Output())(t)
	text := must.OK(os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go")))(t)
	name := regexp.MustCompile(`(?:Name:\s+"|NewDesc\(\s*"kubeproxy_)(\w+)"`)
	for _, m := range name.FindAllStringSubmatch(string(text), -1) {
		names = append(names, "kubeproxy_"+m[1])
	}
	require.Equal(t, strings.Count(string(text), "metrics.New"), len(names)+1,
		"each is found; one New is of values")
	return names
}

// proxyFamilies returns the metrics of kube-proxy that have a collector, each with a value.
func proxyFamilies(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	r := k8smetrics.NewKubeRegistry()
	for _, v := range []*k8smetrics.HistogramVec{kubeproxy.SyncProxyRulesLatency,
		kubeproxy.SyncFullProxyRulesLatency, kubeproxy.SyncPartialProxyRulesLatency,
		kubeproxy.NetworkProgrammingLatency, kubeproxy.ReconcileConntrackFlowsLatency} {
		r.MustRegister(v)
		v.WithLabelValues("IPv4").Observe(1)
	}

	for _, v := range []*k8smetrics.CounterVec{kubeproxy.IPTablesRestoreFailuresTotal,
		kubeproxy.NFTablesSyncFailuresTotal, kubeproxy.NFTablesCleanupFailuresTotal,
		kubeproxy.ProxyHealthzTotal, kubeproxy.ProxyLivezTotal} {
		r.MustRegister(v)
		v.WithLabelValues("1").Inc()
	}

	for _, v := range []*k8smetrics.GaugeVec{kubeproxy.SyncProxyRulesLastTimestamp,
		kubeproxy.SyncProxyRulesLastQueuedTimestamp} {
		r.MustRegister(v)
		v.WithLabelValues("IPv4").Set(1)
	}

	r.MustRegister(kubeproxy.SyncProxyRulesNoLocalEndpointsTotal, kubeproxy.EndpointChangesPending,
		kubeproxy.EndpointChangesTotal, kubeproxy.ServiceChangesPending,
		kubeproxy.ServiceChangesTotal)
	kubeproxy.SyncProxyRulesNoLocalEndpointsTotal.WithLabelValues("internal", "IPv4").Set(1)
	all := must.OK(r.Gather())(t)
	return byName(all)
}

func byName(all []*dto.MetricFamily) map[string]*dto.MetricFamily {
	m := map[string]*dto.MetricFamily{}
	for _, f := range all {
		m[f.GetName()] = f
	}
	return m
}

// cleaned is a keeper of flows that has cleaned up.
type cleaned struct{ conntrack.CleanResult }

func (c *cleaned) Totals() conntrack.CleanResult { return c.CleanResult }
func (c *cleaned) Draining() int                 { return 0 }

// ownFamilies returns the metrics of an engine that has observations for all histograms.
func ownFamilies(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	engine, keeper := dataplane.New(memory.New(nil), nil), &cleaned{}
	c := metrics.New(engine, &metrics.Config{Flows: keeper})
	t.Cleanup(c.Close)
	keeper.Duration = time.Second
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
	for i := range 2 { // the first reads the kernel
		name := servicemodel.Name{Namespace: "default", Name: (&mix{}).name(i)}
		s = s.WithService(&servicemodel.Service{Name: name,
			ClusterIPs: []netip.Addr{(&mix{}).addr(i)},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
		must.OK(engine.Apply(t.Context(), s))(t)
	}

	c.Triggered(engine.Status().Wanted, time.Now())
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	all := must.OK(r.Gather())(t)
	return byName(all)
}
