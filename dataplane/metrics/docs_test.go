package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/servicemodel"
)

// everything makes an engine do all work that has a metric.
func everything(t *testing.T, name string) *fixture {
	t.Helper()
	f := newFixture(t, name, func(c *metrics.Config) {
		c.Connections, c.Counters = true, had(map[int]counters.Values{1: {Connections: 1}})
		c.Node = func(context.Context, *servicemodel.Table) *node.Report { return &node.Report{} }
	})
	f.conntrack.flows = []conntrack.Flow{to(1)}
	f.conntrack.usage = conntrack.Usage{Count: 1, Max: 100}
	f.backend.left = time.Hour
	f.flows.done.Deleted, f.flows.done.Duration = 1, 1
	state := with(with(onNode(), 1, 2), 2, 1, localOnly)
	f.backend.Fail(memory.CallCommit, 1, errBroken)
	_, err := f.engine.Apply(t.Context(), state)
	require.Error(t, err)
	f.backend.Fail(memory.CallCommit, 1, kernelerr.ErrConflict)
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
			ok(f.engine.Switch(t.Context(), f.backend))(t)
		}
		f.conntrack.err = errors.New("not now")
		f.scrape() // counts errors
		f.conntrack.err = nil
		gathered := ok(f.registry.Gather())(t)
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

// panels returns a table of the dashboard: the panels of each row.
func panels(t *testing.T) string {
	t.Helper()
	text := ok(os.ReadFile("dashboard.json"))(t)
	var board struct {
		Panels []struct{ Type, Title string }
	}
	require.NoError(t, json.Unmarshal(text, &board))
	var rows [][]string
	for _, p := range board.Panels {
		if p.Type == "row" {
			rows = append(rows, []string{p.Title})
			continue
		}

		rows[len(rows)-1] = append(rows[len(rows)-1], p.Title)
	}

	table := "| row | panels |\n|---|---|\n"
	for _, r := range rows {
		table += "| " + r[0] + " | " + strings.Join(r[1:], "; ") + " |\n"
	}
	return table
}

// The tables of the document list exactly the existing metrics, and the panels of the dashboard.
func TestTheDocumentListsAllMetrics(t *testing.T) {
	t.Parallel()
	const document = "../../docs/metrics.md"
	text := ok(os.ReadFile(document))(t)
	all := families(t)
	names := slices.Sorted(maps.Keys(all))
	require.Len(t, names, described(newFixture(t, "nftables").collector),
		"the story leaves out a metric")
	tables := map[string]string{"dashboard": panels(t)}
	for _, prefix := range []string{"kubeproxy", "kernlb"} {
		tables[prefix] = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
		for _, name := range names {
			if strings.HasPrefix(name, prefix+"_") {
				tables[prefix] += row(all[name])
			}
		}
	}

	got := string(text)
	for name, table := range tables {
		begin, end := "<!-- "+name+" -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(got, begin)
		require.True(t, found)
		_, after, found := strings.Cut(rest, end)
		require.True(t, found)
		got = before + begin + table + end + after
	}

	golden.File(t, document, got)
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
