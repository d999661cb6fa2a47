package metrics_test

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
)

// A program serves its metrics next to its health.
func ExampleNew() {
	serve := func(engine *dataplane.Engine, keeper *flows.Keeper, table *conntrack.Table) error {
		proxy, mux := health.NewProxy(engine, nil), http.NewServeMux()
		collector := metrics.New(engine, &metrics.Config{Flows: keeper, Conntrack: table})
		defer collector.Close()
		registry := prometheus.NewRegistry()
		registry.MustRegister(collector, collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		mux.Handle("/", collector.CountProbes(proxy.Handler())) // of dataplane/health
		return http.ListenAndServe("127.0.0.1:10249", mux)
	}

	_ = serve
}
