package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/page"
)

// handler answers /metrics, /healthz and /backends, and shows the page elsewhere, until it is
// closed.
func (b *balancer) handler(keeper *flows.Keeper, table *conntrack.Table) (h http.Handler,
	closeIt func()) {
	collector := metrics.New(b.engine, &metrics.Config{Flows: keeper, Conntrack: table,
		Problems: b.problems, Node: b.node.Report, Silent: b.silent})
	shown := page.New(b.engine, &page.Config{Conntrack: table, Problems: b.problems,
		Node: b.node.Report, Silent: b.silent, Links: map[string]string{"Backends": "backends"}})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector, verdicts{b}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	healthy := collector.CountProbes(health.NewProxy(b.engine,
		&health.ProxyConfig{Problems: b.problems, Node: b.node.Report,
			Silent: b.silent}).Handler())
	mux.Handle("/healthz", healthy)
	mux.Handle("/livez", healthy)
	mux.HandleFunc("/backends", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(b.backends()) //nolint:errcheck // the client went away
	})

	mux.Handle("/", shown)
	return mux, func() {
		collector.Close()
		shown.Close() //nolint:errcheck // never fails
	}
}

// serve serves until the context ends. It disconnects clients that are slow or idle.
func serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	if l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		handler = page.Loopback(handler)
	}
	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// backendStatus is a backend in the output of /backends.
type backendStatus struct {
	Service string         `json:"service"`
	Backend netip.AddrPort `json:"backend"`
	// State is that of its checks, or of a sorry server, "in use" or "not in use".
	State   string `json:"state"`
	Sorry   bool   `json:"sorry,omitzero"`
	Drained bool   `json:"drained,omitzero"`
	// Silent says why the backend is out although its checks may pass, such as "12 connections of 5
	// clients unanswered in 400ms".
	Silent string        `json:"silent,omitempty"`
	Checks []checkStatus `json:"checks,omitempty"`
}

type checkStatus struct {
	Check  string    `json:"check"`
	State  string    `json:"state"`
	Since  time.Time `json:"since,omitzero"`
	Error  string    `json:"error,omitempty"`
	Passed uint64    `json:"passed"`
	Failed uint64    `json:"failed"`
	// Milliseconds is the time of the last check.
	Milliseconds float64 `json:"milliseconds"`
}

// backends returns the status of each backend, in the order of the file.
func (b *balancer) backends() []backendStatus {
	reports := map[checks.Target]checks.Report{}
	for _, r := range b.monitor.Reports() {
		reports[r.Target] = r
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	silent, out := b.silentBackends(), []backendStatus{}
	verdict := func(t checks.Target) checks.State { return reports[t].State }
	for i := range b.file.Services {
		s := &b.file.Services[i]
		for j := range s.Backends {
			e := &s.Backends[j]
			st := backendStatus{Service: s.Name, Backend: e.Address, Drained: e.Drained(),
				State: backendState(s, e, verdict).String()}
			if c, is := silent[backendKey{s.Name, e.Address}]; is {
				st.Silent = c.Evidence()
			}

			for _, t := range s.Targets(e) {
				r := reports[t]
				c := checkStatus{Check: t.String(), State: r.State.String(), Since: r.Since,
					Passed: r.Passed, Failed: r.Failed,
					Milliseconds: float64(r.Took.Microseconds()) / 1000}
				if r.Err != nil {
					c.Error = r.Err.Error()
				}
				st.Checks = append(st.Checks, c)
			}

			out = append(out, st)
		}

		used := b.sorryInUse(s, verdict)
		for _, a := range s.Sorry {
			st := backendStatus{Service: s.Name, Backend: a, Sorry: true, State: "not in use"}
			if slices.Contains(used, a) {
				st.State = "in use"
			}
			out = append(out, st)
		}
	}

	return out
}

// verdicts are metrics of the checks' verdicts.
type verdicts struct{ *balancer }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("loadbalancer_"+name, help, labels, nil)
}

var (
	upDesc = desc("backend_up", "Whether a backend may be used: all its checks pass, and "+
		"it is not ejected for not answering clients.", "service",
		"backend")
	sorryDesc = desc("sorry_in_use", "How many sorry servers of a service stand in, because no "+
		"backend of their family is up.", "service")
	checksDesc = desc("checks_total", "Checks that were made, by their results.", "check",
		"result")
	tookDesc    = desc("check_duration_seconds", "How long the last check took.", "check")
	reloadsDesc = desc("reloads_total", "How often the file was read again, by whether it was "+
		"taken.", "result")
)

// Describe implements prometheus.Collector.
func (v verdicts) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(v, to) }

// Collect implements prometheus.Collector.
func (v verdicts) Collect(to chan<- prometheus.Metric) {
	silent := v.silentBackends()
	for k, s := range v.backendStates() {
		up := 0.0
		if _, out := silent[k]; s == checks.Up && !out {
			up = 1
		}
		to <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, k.service,
			k.backend.String())
	}

	sum := map[string]checks.Report{} // checks of one target may differ only in their times
	for _, r := range v.monitor.Reports() {
		s := sum[r.Target.String()]
		s.Passed, s.Failed, s.Took = s.Passed+r.Passed, s.Failed+r.Failed, max(s.Took, r.Took)
		sum[r.Target.String()] = s
	}

	for name, r := range sum {
		to <- prometheus.MustNewConstMetric(checksDesc, prometheus.CounterValue, float64(r.Passed),
			name, "passed")
		to <- prometheus.MustNewConstMetric(checksDesc, prometheus.CounterValue, float64(r.Failed),
			name, "failed")
		to <- prometheus.MustNewConstMetric(tookDesc, prometheus.GaugeValue, r.Took.Seconds(), name)
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.file.Services {
		if s := &v.file.Services[i]; len(s.Sorry) > 0 {
			to <- prometheus.MustNewConstMetric(sorryDesc, prometheus.GaugeValue,
				float64(len(v.sorryInUse(s, v.monitor.State))), s.Name)
		}
	}

	for ok, result := range map[bool]string{true: "taken", false: "broken"} {
		to <- prometheus.MustNewConstMetric(reloadsDesc, prometheus.CounterValue,
			float64(v.reloads[ok]), result)
	}
}
