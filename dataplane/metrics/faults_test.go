package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// patient is a running engine, with the state for its faults.
type patient struct {
	*fixture
	stop      func() // of Run
	problems  []string
	silent    []silence.Change
	findings  []node.Finding
	unsettled atomic.Bool // later work fails
	unwatched atomic.Bool // the addresses of the node are not followed
	slow      time.Duration
	n         int // of states
}

// want sets a new state: service 1, with the edits.
func (p *patient) want(edits ...func(servicemodel.State) servicemodel.State) {
	p.n++
	s := with(onNode(), 1, p.n)
	for _, edit := range edits {
		s = edit(s)
	}
	r := p.engine.Set(s)
	p.collector.Triggered(r, time.Now().Add(-p.slow))
}

func adding(i, endpoints int, edits ...func(*servicemodel.Service),
) func(servicemodel.State) servicemodel.State {
	return func(s servicemodel.State) servicemodel.State { return with(s, i, endpoints, edits...) }
}

// Complete and Watch make the patient the source of facts about the node.
func (p *patient) Complete(_ context.Context, n servicemodel.Node) (servicemodel.Node, error) {
	return n, nil
}

func (p *patient) Watch(ctx context.Context, _ func()) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(time.Minute):
		if p.unwatched.Load() {
			return errBroken
		}
		return nil
	}
}

// settling is a backend whose later work fails.
type settling struct {
	*named
	p *patient
}

func (s *settling) Settle(context.Context) (time.Duration, error) {
	if s.p.unsettled.Load() {
		return 0, errBroken
	}
	return time.Hour, nil
}

// faults are the faults that the alerts report. Each fault is caused once a minute.
var faults = map[string]func(p *patient){
	"KernlbNotRunning": func(p *patient) { p.stop() },
	"KernlbPending": func(p *patient) {
		p.backend.Fail(memory.CallCommit, 1000, errBroken)
		p.want()
	},
	"KernlbFailing": func(p *patient) {
		p.backend.Fail(memory.CallCommit, 1000, errBroken)
		p.want()
	},
	"KernlbServiceRefused":      func(p *patient) { p.want(adding(2, 1, invalid)) },
	"KernlbInputProblem":        func(p *patient) { p.problems = []string{"a.yaml is broken"} },
	"KernlbSilentEndpoints":     func(p *patient) { p.silent = make([]silence.Change, 1) },
	"KernlbAddressClaimedTwice": func(p *patient) { p.want(adding(2, 1, sharing(1))) },
	"KernlbServicesReject":      func(p *patient) { p.want(adding(2, 0)) },
	"KernlbNodeLosesConnections": func(p *patient) {
		p.findings = []node.Finding{{Check: node.Forwarding, Severity: node.Error}}
	},
	"KernlbNodeMayLoseConnections": func(p *patient) {
		p.findings = []node.Finding{{Check: node.ReversePath, Severity: node.Warning}}
	},
	"KernlbChangedByOthers": func(p *patient) { p.backend.Kernel().Flush() },
	"KernlbRepairsUndone": func(p *patient) {
		for range 100 {
			p.backend.Kernel().Flush()
			time.Sleep(500 * time.Millisecond)
		}
	},
	"KernlbWorkOverdue": func(p *patient) {
		p.unsettled.Store(true)
		p.want()
	},
	"KernlbSlowApplies": func(p *patient) {
		p.backend.Before(memory.CallCommit, func(context.Context) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		p.want()
	},
	"KernlbSlowProgramming": func(p *patient) {
		p.slow = time.Minute
		p.want()
	},
	"KernlbNodeNotFollowed":     func(p *patient) { p.unwatched.Store(true) },
	"KernlbConntrackNearlyFull": func(p *patient) { p.conntrack.usage.Count = 95 },
	"KernlbConntrackDrops":      func(p *patient) { p.conntrack.usage.Stats.Dropped++ },
	"KernlbScrapeIncomplete":    func(p *patient) { p.conntrack.err = errBroken },
	"KernlbGone":                nil, // nothing is scraped any more
}

// The numbers of minutes before a fault and with the fault.
const healthyFor, illFor = 20, 40

// scraped has the values of series, one per minute. A missing value is "_".
type scraped map[string][]string

// add adds the values of a minute.
func (h scraped) add(minute int, start time.Time, families []*dto.MetricFamily) {
	set := func(name string, m *dto.Metric, le string, v float64) {
		var labels []string
		for _, l := range m.Label {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		if le != "" {
			labels = append(labels, fmt.Sprintf("le=%q", le))
		}
		if strings.HasSuffix(name, "_timestamp_seconds") { // Prometheus begins at 0
			v -= float64(start.Unix())
		}
		key := name + `{instance="n1",job="kernlb",` + strings.Join(labels, ",") + "}"
		for len(h[key]) < minute {
			h[key] = append(h[key], "_")
		}
		h[key] = append(h[key], strconv.FormatFloat(v, 'g', -1, 64))
	}

	for _, f := range families {
		for _, m := range f.Metric {
			switch {
			case m.Counter != nil:
				set(f.GetName(), m, "", m.Counter.GetValue())
			case m.Gauge != nil:
				set(f.GetName(), m, "", m.Gauge.GetValue())
			case m.Histogram != nil:
				for _, b := range m.Histogram.Bucket {
					set(f.GetName()+"_bucket", m,
						strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64),
						float64(b.GetCumulativeCount()))
				}

				set(f.GetName()+"_bucket", m, "+Inf", float64(m.Histogram.GetSampleCount()))
			}
		}
	}

	for key, values := range h {
		if len(values) == minute {
			h[key] = append(values, "_")
		}
	}
}

// illness returns the scraped values of a running engine, first healthy and then with a fault.
func illness(t *testing.T, fault func(p *patient)) scraped {
	h := scraped{}
	p := &patient{}
	f := &fixture{t: t, flows: &fakeFlows{}, conntrack: &fakeConntrack{
		usage: conntrack.Usage{Count: 10, Max: 100}}}
	p.fixture = f
	g := newFixture(t, "nftables") // for its backend and registry
	f.backend, f.registry = g.backend, g.registry
	f.registry.Unregister(g.collector)
	f.engine = dataplane.New(&settling{f.backend, p}, &dataplane.Config{Node: p})
	f.collector = metrics.New(f.engine, &metrics.Config{Flows: f.flows, Conntrack: f.conntrack,
		Problems: func() []string { return p.problems },
		Silent:   func() []silence.Change { return p.silent },
		Node: func(context.Context, *servicemodel.Table) *node.Report {
			return &node.Report{Findings: p.findings}
		}})
	defer f.collector.Close()
	require.NoError(t, f.registry.Register(f.collector))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	p.stop = stop
	p.want()
	go func() { ended <- f.engine.Run(ctx, &dataplane.RunOptions{RetryMax: 30 * time.Second}) }()
	start := time.Now()
	for minute := range healthyFor + illFor {
		if minute >= healthyFor && fault != nil {
			fault(p)
		} else {
			p.want()
		}

		synctest.Wait()
		time.Sleep(time.Until(start.Add(time.Duration(minute+1) * time.Minute)))
		if minute >= healthyFor && fault == nil {
			continue
		}
		h.add(minute, start, ok(f.registry.Gather())(t))
	}

	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		require.NoError(t, err)
	}
	for minute := range healthyFor + illFor {
		up := "1"
		if fault == nil && minute >= healthyFor {
			up = "0"
		}
		h[`up{instance="n1",job="kernlb"}`] = append(h[`up{instance="n1",job="kernlb"}`], up)
	}

	return h
}

// Each fault is caused in a running engine, and the scraped values make its alert fire: promtool
// evaluates the rules. As long as the engine is healthy, no alert fires.
func TestEachFaultMakesItsAlertFire(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for alert := range alerts(t) {
		require.Contains(t, faults, alert)
	}
	for alert, fault := range faults {
		t.Run(alert, func(t *testing.T) {
			var h scraped
			synctest.Test(t, func(t *testing.T) { h = illness(t, fault) })
			var b strings.Builder
			fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n"+
				"  input_series:\n", ok(filepath.Abs("alerts.yaml"))(t))
			for _, key := range slices.Sorted(maps.Keys(h)) {
				fmt.Fprintf(&b, "  - {series: '%s', values: '%s'}\n",
					strings.ReplaceAll(key, ",}", "}"), strings.Join(h[key], " "))
			}

			fmt.Fprintf(&b, "  promql_expr_test:\n"+
				"  - {expr: 'ALERTS{alertstate=\"firing\"}', eval_time: %dm, exp_samples: []}\n"+
				"  - {expr: 'count(ALERTS{alertname=%q,alertstate=\"firing\"}) > bool 0', "+
				"eval_time: %dm, exp_samples: [{labels: '{}', value: 1}]}\n", healthyFor-1, alert,
				healthyFor+illFor-2)
			file := filepath.Join(t.TempDir(), "test.yaml")
			require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
			out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
