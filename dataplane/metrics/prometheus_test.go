package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
)

// config makes Prometheus scrape often, with the names that the dashboard of kube-proxy uses.
const config = `
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: kube-proxy
  static_configs: [{targets: ["%s"], labels: {cluster: lab}}]
`

// lab is a Prometheus.
type lab struct {
	t      *testing.T
	at     string // its URL
	output bytes.Buffer
	ended  chan error
}

// startLab starts Prometheus, which scrapes h.
func startLab(t *testing.T, h http.Handler) *lab {
	t.Helper()
	server := program(t, "prometheus")
	target := httptest.NewServer(h)
	t.Cleanup(target.Close)
	free := ok(net.Listen("tcp", "127.0.0.1:0"))(t) // a free port
	l := &lab{t: t, at: "http://" + free.Addr().String(), ended: make(chan error, 1)}
	free.Close()

	dir := ok(filepath.Abs("alerts.yaml"))(t)
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, config, dir,
		target.Listener.Addr()), 0o644))
	cmd := exec.Command(server, "--config.file="+file, "--storage.tsdb.path="+t.TempDir(),
		"--web.listen-address="+free.Addr().String(), "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &l.output, &l.output
	require.NoError(t, cmd.Start())
	go func() { l.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-l.ended
	})

	return l
}

// sample is a value in an answer of Prometheus.
type sample struct {
	Metric map[string]string
	Value  []any // time and text
}

// ask returns the value of a query. It retries while Prometheus does not answer.
func (l *lab) ask(query string) ([]sample, error) {
	resp, err := http.Get(l.at + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []sample }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return answer.Data.Result, nil
}

// requireValue waits until a query has a value that is a number.
func (l *lab) requireValue(what, query string) {
	l.t.Helper()
	var last any
	for range 600 {
		select {
		case err := <-l.ended:
			l.ended <- err
			require.Fail(l.t, "Prometheus ended", "%v: %s", err, l.output.String())
		case <-time.After(100 * time.Millisecond):
		}

		result, err := l.ask(query)
		for _, s := range result {
			if len(s.Value) == 2 && s.Value[1] != "NaN" {
				return
			}
		}

		last = err
		if err == nil {
			last = result
		}
	}

	require.Fail(l.t, "evaluates to nothing", "%s: %s: %v", what, query, last)
}

// With a scraping Prometheus, each query of the dashboards and each figure of an alert has a value.
func TestPrometheusHasWhatDashboardsAndAlertsAskFor(t *testing.T) {
	t.Parallel()
	f := everything(t, "nftables")
	f.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	l := startLab(t, promhttp.HandlerFor(f.registry, promhttp.HandlerOpts{}))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { f.busy(stop); close(stopped) }()
	defer func() { close(stop); <-stopped }()

	for _, query := range proxyQueries(t) {
		l.requireValue("kube-proxy's dashboard", query)
	}
	for title, queries := range dashboardQueries(t) {
		for _, query := range queries {
			l.requireValue(title, query)
		}
	}

	for alert, figure := range alerts(t) {
		l.requireValue(alert, figure)
	}
	l.requireRulesAreEvaluated()
}

// busy changes services until stop is closed, so that there are rates.
func (f *fixture) busy(stop <-chan struct{}) {
	for n := 1; ; n = n%5 + 1 {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}

		r := f.engine.Set(with(with(onNode(), 1, n), 2, 1, localOnly))
		f.collector.Triggered(r, time.Now())
		f.flows.done.Duration += time.Millisecond
		if _, err := f.engine.Apply(context.Background(), f.engine.Status().State); err != nil {
			f.t.Error(err)
			return
		}
	}
}

// requireRulesAreEvaluated waits until all alerts have been evaluated without error.
func (l *lab) requireRulesAreEvaluated() {
	l.t.Helper()
	require.Eventually(l.t, func() bool {
		resp, err := http.Get(l.at + "/api/v1/rules")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(resp.Body); err != nil {
			return false
		}
		return strings.Count(text.String(), `"health":"ok"`) == len(alerts(l.t))
	}, time.Minute, 100*time.Millisecond)
}
