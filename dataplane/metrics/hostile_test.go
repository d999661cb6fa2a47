package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/internal/test/servetest"
)

func TestHostileClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	servetest.HostileToHandler(t, "/metrics", promhttp.HandlerFor(f.registry,
		promhttp.HandlerOpts{}))
}

func TestTheMetricsOfNoEngine(t *testing.T) {
	t.Parallel()
	c := metrics.New(nil, nil)
	defer c.Close()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Gather(); err != nil {
		t.Fatal(err)
	}
}
