package metrics_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program returns the path of a program, or skips the test without it.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// The alerts fire when they should, and only then. Each alert has a test.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"},
		{"test", "rules", "alerts_test.yaml"}} {
		out, err := exec.Command(promtool, args...).CombinedOutput()
		require.NoError(t, err, "promtool %v: %s", args, out)
	}

	tests := read(t, "alerts_test.yaml")
	for name := range alerts(t) {
		require.Contains(t, tests, "alertname: "+name+"\n")
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text := ok(os.ReadFile(file))(t)
	return string(text)
}

// rule matches an alert of alerts.yaml, whose expression compares a figure with a number.
var rule = regexp.MustCompile(`- alert: (\w+)\n +expr: (.*) (?:>|==) [0-9.]+\n`)

// alerts returns the figures that alerts compare, by the alert's name.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	text := read(t, "alerts.yaml")
	figures := map[string]string{}
	for _, m := range rule.FindAllStringSubmatch(text, -1) {
		figures[m[1]] = m[2]
	}
	require.Len(t, figures, strings.Count(text, "- alert: "), "alerts that compare otherwise")
	return figures
}

// variables are the variables of dashboards, with all instances chosen.
var (
	variables = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$cluster",
		"lab")
	labelValues = regexp.MustCompile(`label_values\((\w+), \w+\)`)
)

// dashboardQueries returns the queries of our dashboard, by the title of the panel.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Templating struct {
			List []struct{ Name, Query string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, "dashboard.json")), &d))
	out := map[string][]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			out[p.Title] = append(out[p.Title], variables.Replace(target.Expr))
		}
	}

	for _, v := range d.Templating.List {
		if m := labelValues.FindStringSubmatch(v.Query); m != nil {
			out["variable "+v.Name] = []string{m[1]}
		}
	}

	require.Greater(t, len(out), 20)
	return out
}

// proxyQueries returns the queries of kube-proxy's dashboard that use metrics of a collector.
func proxyQueries(t *testing.T) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(read(t, "testdata/kubeproxy-dashboard.promql")) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' && !strings.HasPrefix(line, "client-go: ") {
			out = append(out, variables.Replace(line))
		}
	}

	require.Len(t, out, 9)
	return out
}

var metricName = regexp.MustCompile(`\b(kernlb|kubeproxy)_\w+\b`)

// All queries use existing metrics. This test needs no Prometheus.
func TestQueriesAskForMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	there := families(t)
	var all []string
	for _, queries := range dashboardQueries(t) {
		all = append(all, queries...)
	}
	for _, figure := range alerts(t) {
		all = append(all, figure)
	}
	for _, query := range append(all, proxyQueries(t)...) {
		for _, name := range metricName.FindAllString(query, -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			require.Contains(t, there, name, query)
		}
	}
}
