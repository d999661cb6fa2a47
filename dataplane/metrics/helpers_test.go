package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

var errBroken = errors.New("broken")

// serviceName is default/svc-i.
func serviceName(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
}

func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
}

// with adds a service with this number of endpoints, on node n2, to a state.
func with(s servicemodel.State, i, endpoints int,
	edits ...func(*servicemodel.Service)) servicemodel.State {
	svc := &servicemodel.Service{Name: serviceName(i), ClusterIPs: []netip.Addr{clusterIP(i)},
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	for _, edit := range edits {
		edit(svc)
	}
	var eps []servicemodel.Endpoint
	for j := range endpoints {
		eps = append(eps, servicemodel.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, byte(i), byte(j)}), Node: "n2",
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	return s.WithService(svc).WithEndpoints(svc.Name, eps)
}

// onNode is an empty state seen from node n1.
func onNode() servicemodel.State {
	return servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
}

func localOnly(s *servicemodel.Service) {
	s.InternalTrafficPolicy, s.ExternalTrafficPolicy = servicemodel.PolicyLocal,
		servicemodel.PolicyLocal
	s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, s.ClusterIPs[0].As4()[3]})}
}

func invalid(s *servicemodel.Service) { s.Ports[0].Port = 0 }

func sharing(i int) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.ClusterIPs = []netip.Addr{clusterIP(i)} }
}

// fakeFlows is a keeper of flows.
type fakeFlows struct {
	done     conntrack.CleanResult
	draining int
}

func (f *fakeFlows) Totals() conntrack.CleanResult { return f.done }
func (f *fakeFlows) Draining() int                 { return f.draining }

// fakeConntrack is a conntrack table.
type fakeConntrack struct {
	usage   conntrack.Usage
	flows   []conntrack.Flow
	err     error
	asked   int
	dumped  int
	blocked bool
}

func (f *fakeConntrack) Usage(ctx context.Context) (conntrack.Usage, error) {
	f.asked++
	if f.blocked {
		<-ctx.Done()
		return conntrack.Usage{}, ctx.Err()
	}

	return f.usage, f.err
}

func (f *fakeConntrack) NodeAddrs([]netip.Prefix) ([]netip.Addr, error) { return nil, nil }

func (f *fakeConntrack) Flows(context.Context, conntrack.Filter) iter.Seq2[conntrack.Flow, error] {
	f.dumped++
	return func(yield func(conntrack.Flow, error) bool) {
		for fl, err := range conntrack.All(f.flows...) {
			if !yield(fl, err) {
				return
			}
		}

		if f.err != nil {
			yield(conntrack.Flow{}, f.err)
		}
	}
}

// fixture is an engine without a kernel, with its collector.
type fixture struct {
	t         *testing.T
	backend   *named
	engine    *dataplane.Engine
	flows     *fakeFlows
	conntrack *fakeConntrack
	collector *metrics.Collector
	registry  *prometheus.Registry

	last map[string]float64 // the values at the last call of tells
	told strings.Builder
}

// named is a backend with a different name.
type named struct {
	*memory.Backend
	name string
	left time.Duration // until there is later work
}

func (n *named) Name() string { return n.name }

func (n *named) Settle(context.Context) (time.Duration, error) { return n.left, nil }

func newFixture(t *testing.T, name string, edits ...func(*metrics.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, backend: &named{Backend: memory.New(nil), name: name}, flows: &fakeFlows{},
		conntrack: &fakeConntrack{}, registry: prometheus.NewPedanticRegistry()}
	f.engine = dataplane.New(f.backend, nil)
	cfg := &metrics.Config{Flows: f.flows, Conntrack: f.conntrack}
	for _, edit := range edits {
		edit(cfg)
	}
	f.collector = metrics.New(f.engine, cfg)
	t.Cleanup(f.collector.Close)
	require.NoError(t, f.registry.Register(f.collector))
	return f
}

func (f *fixture) apply(s servicemodel.State) {
	f.t.Helper()
	ok(f.engine.Apply(f.t.Context(), s))(f.t)
}

// scrape returns the values of all series. For a histogram these are the count and the sum.
func (f *fixture) scrape() map[string]float64 {
	f.t.Helper()
	families := ok(f.registry.Gather())(f.t)
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName() + labels(m)
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				out[name] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				out[name] = m.Gauge.GetValue()
			default:
				out[name+" count"] = float64(m.Histogram.GetSampleCount())
				out[name+" sum"] = math.Round(m.Histogram.GetSampleSum()*1e6) / 1e6
			}
		}
	}

	return out
}

func labels(m *dto.Metric) string {
	var l []string
	for _, p := range m.Label {
		l = append(l, p.GetName()+"="+p.GetValue())
	}
	if len(l) == 0 {
		return ""
	}
	return "{" + strings.Join(l, ",") + "}"
}

// telling runs a test in a bubble. testdata/NAME.txt has the output of the test.
func telling(t *testing.T, backend string, test func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, backend)
		test(f)
		golden.File(t, "testdata/"+t.Name()+".txt", f.told.String())
	})
}

// tells prints the series that are new or have changed since its last call. The first call prints
// the series that are not 0.
func (f *fixture) tells(what string) {
	f.t.Helper()
	fmt.Fprintf(&f.told, "# %s\n", what)
	now := f.scrape()
	maps.DeleteFunc(now, func(name string, _ float64) bool { // as package memory happens to count
		return strings.HasPrefix(name, "kernlb_kernel_sent_bytes_total")
	})
	for _, name := range slices.Sorted(maps.Keys(now)) {
		was, there := f.last[name]
		if now[name] != was || !there && f.last != nil {
			fmt.Fprintln(&f.told, name, strconv.FormatFloat(now[name], 'f', -1, 64))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(f.last)) {
		if _, there := now[name]; !there {
			fmt.Fprintf(&f.told, "%s is gone\n", name)
		}
	}

	f.told.WriteByte('\n')
	f.last = now
}

// requireSeries requires series with these values. NaN means that the series must not exist.
func (f *fixture) requireSeries(want map[string]float64) {
	f.t.Helper()
	got := f.scrape()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		v, there := got[name]
		if math.IsNaN(want[name]) {
			require.False(f.t, there, "%s is there", name)
			continue
		}

		require.True(f.t, there, "%s is not there", name)
		require.InDelta(f.t, want[name], v, 1e-9, name)
	}
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
