package metrics_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md")

// everything makes an engine do everything that there are metrics of.
func everything(t *testing.T, name string) *fixture {
	t.Helper()
	f := newFixture(t, name, func(c *metrics.Config) {
		c.Connections, c.Counters = true, had(map[int]counters.Values{1: {Connections: 1}})
	})
	f.conntrack.flows = []conntrack.Flow{to(1)}
	f.conntrack.usage = conntrack.Usage{Count: 1, Max: 100}
	f.backend.left = time.Hour
	f.flows.done.Deleted, f.flows.done.Duration = 1, 1
	state := with(with(onNode(), 1, 2), 2, 1, localOnly)
	f.backend.Fail(memory.CallCommit, 1, errBroken)
	_, err := f.engine.Apply(t.Context(), state)
	require.Error(t, err)
	f.backend.Fail(memory.CallCommit, 1, dataplane.ErrConflict)
	f.apply(state)
	f.collector.Triggered(2, f.engine.Status().Asked)
	h := f.collector.CountProbes(http.NotFoundHandler())
	for _, path := range []string{"/healthz", "/livez"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	return f
}

// families are the metrics of all backends, by name.
func families(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	out := map[string]*dto.MetricFamily{}
	for _, name := range []string{"nftables", "iptables", "ipvs"} {
		f := everything(t, name)
		if name == "ipvs" {
			_, err := f.engine.Switch(t.Context(), f.backend)
			require.NoError(t, err)
		}
		f.conntrack.err = errors.New("not now")
		f.scrape() // counts errors
		f.conntrack.err = nil
		gathered, err := f.registry.Gather()
		require.NoError(t, err)
		for _, family := range gathered {
			out[family.GetName()] = family
		}
	}
	return out
}

// row describes a metric in a table of the document.
func row(f *dto.MetricFamily) string {
	var labels []string
	for _, l := range f.Metric[0].Label {
		labels = append(labels, "`"+l.GetName()+"`")
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", f.GetName(),
		strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp())
}

// The tables of the document are those of the metrics that there are.
func TestTheDocumentListsAllMetrics(t *testing.T) {
	t.Parallel()
	const document = "../../docs/metrics.md"
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	all := families(t)
	names := slices.Sorted(maps.Keys(all))
	require.Len(t, names, described(newFixture(t, "nftables").collector),
		"the story leaves out a metric")
	got := string(text)
	for _, prefix := range []string{"kubeproxy", "kernlb"} {
		table := "| metric | type | labels | meaning |\n|---|---|---|---|\n"
		for _, name := range names {
			if strings.HasPrefix(name, prefix+"_") {
				table += row(all[name])
			}
		}
		begin, end := "<!-- "+prefix+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(got, begin)
		require.True(t, found)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found)
		got = before + begin + table + end + after
	}
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(got), 0o644))
		return
	}
	require.Equal(t, string(text), got, "go test ./dataplane/metrics -update writes the tables")
}

// described counts the metrics that a collector describes.
func described(c prometheus.Collector) (n int) {
	descs := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	for range descs {
		n++
	}
	return n
}
