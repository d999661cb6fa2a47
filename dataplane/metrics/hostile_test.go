package metrics_test

import (
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/internal/test/servetest"
)

func TestHostileClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	servetest.HostileToHandler(t, "/metrics", promhttp.HandlerFor(f.registry,
		promhttp.HandlerOpts{}))
}

// Without an engine, the metrics are those of an idle engine.
func TestTheMetricsOfNoEngine(t *testing.T) {
	t.Parallel()
	created := regexp.MustCompile(`created_timestamp:\{[^}]*\}`)
	gathered := func(e *dataplane.Engine) (l []string) {
		c := metrics.New(e, nil)
		defer c.Close()
		r := prometheus.NewPedanticRegistry()
		require.NoError(t, r.Register(c))
		for _, family := range ok(r.Gather())(t) {
			l = append(l, created.ReplaceAllString(family.String(), ""))
		}
		return l
	}

	none := gathered(nil)
	require.NotEmpty(t, none)
	require.Equal(t, gathered(new(dataplane.Engine)), none)
}
