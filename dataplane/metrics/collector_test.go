package metrics_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

var none = math.NaN()

// at returns the time that many seconds after the start of a bubble, which is midnight UTC
// 2000-01-01.
func at(seconds float64) float64 { return 946684800 + seconds }

func TestAppliesAreCountedAsKubeProxyCountsSyncs(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds{ip_family=IPv4} count":          0,
			"kubeproxy_network_programming_duration_seconds{ip_family=IPv6} count":       0,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=IPv4}":          none,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=IPv4}":    0,
			"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=IPv4}": none,
			"kernlb_last_success_timestamp_seconds":                                      none,
			"kernlb_info{backend=nftables}":                                              1,
		})
		f.backend.Before(memory.CallCommit, func(context.Context) error {
			time.Sleep(2 * time.Second)
			return nil
		})

		f.apply(with(with(onNode(), 1, 3), 2, 2))
		f.apply(with(with(onNode(), 1, 3), 2, 4))
		f.tells("two applies, of 2 s each")
		f.apply(with(with(onNode(), 1, 3), 2, 4))
		f.tells("the same once more")
	})
}

func TestWhatWaitsIsPendingUntilItIsApplied(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		f.apply(with(onNode(), 1, 1))
		f.engine.Set(with(with(onNode(), 1, 2), 2, 1))
		time.Sleep(30 * time.Second)
		f.tells("30 s after Set")
		ctx, cancel := context.WithCancel(f.t.Context())
		done := make(chan struct{})
		go func() { _ = f.engine.Run(ctx, nil); close(done) }()
		synctest.Wait()
		f.tells("Run has applied it")
		cancel()
		<-done
	})
}

func TestFailuresRetriesAndRepairsAreCounted(t *testing.T) {
	t.Parallel()
	telling(t, "iptables", func(f *fixture) {
		state := with(onNode(), 1, 2)
		f.backend.Fail(memory.CallCommit, 1, errBroken)
		_, err := f.engine.Apply(f.t.Context(), state)
		require.Error(f.t, err)
		f.backend.Fail(memory.CallCommit, 2, kernelerr.ErrConflict)
		f.apply(state)
		f.tells("a failure, and two conflicts")
		f.backend.Kernel().Flush()
		f.backend.Kernel().AddDrift("a chain of nobody")
		f.apply(state)
		f.tells("a flush and a foreign object")
		ctx, cancel := context.WithCancel(f.t.Context())
		f.backend.Before(memory.CallCommit, func(context.Context) error {
			cancel()
			return ctx.Err()
		})

		_, err = f.engine.Apply(ctx, with(state, 2, 1))
		require.ErrorIs(f.t, err, context.Canceled)
		f.tells("an apply is cancelled")
	})
}

func TestServicesThatAreLeftOutAreCounted(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		s := with(with(with(onNode(), 1, 1), 2, 1, invalid), 3, 1, sharing(1))
		s = with(with(s, 4, 1, localOnly), 5, 0, localOnly) // 5 has no endpoint anywhere
		f.apply(s)
		f.apply(s)
		f.tells("one is invalid, one conflicts, and two have no local endpoints")
		f.apply(s.WithoutService(serviceName(2)).WithoutService(serviceName(4)))
		f.tells("the invalid one and one of the local ones go")
	})
}

// A program that starts adopts the services in the kernel. A new backend gets the services of the
// old backend.
func TestAdoptionSwitchesAndCleanups(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		before := with(with(onNode(), 1, 1), 2, 1)
		ok(dataplane.New(memory.New(f.backend.Kernel()), nil).Apply(f.t.Context(), before))(f.t)
		f.backend.HeedHints(true) // a second step finds svc-2
		f.apply(with(onNode(), 1, 1))
		f.tells("one service is adopted, and one goes")
		ok(f.engine.Switch(f.t.Context(), &named{Backend: memory.New(nil), name: "ipvs"}))(f.t)
		f.tells("another backend")
		ok(f.engine.Cleanup(f.t.Context()))(f.t)
		f.tells("a cleanup")
	})
}

// A reviewed change set counts like any other change.
func TestChangesOfAPlanAreCounted(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		preview := ok(f.engine.Plan(f.t.Context(), with(onNode(), 1, 1)))(f.t)
		text := ok(json.Marshal(preview.Changes))(f.t)
		var changes servicemodel.ChangeSet
		require.NoError(f.t, json.Unmarshal(text, &changes))
		ok(f.engine.ApplyChanges(f.t.Context(), &changes))(f.t)
		f.tells("a change set")
		ok(f.engine.ForceSwitch(f.t.Context(), memory.New(nil)))(f.t)
		f.tells("another backend, while no state is wanted")
	})
}

func TestFlowsAreCounted(t *testing.T) {
	t.Parallel()
	telling(t, "nftables", func(f *fixture) {
		f.flows.done = conntrack.CleanResult{Deleted: 3, Reset: 1, Duration: time.Second}
		f.flows.draining = 2
		f.apply(with(onNode(), 1, 1))
		f.apply(with(onNode(), 1, 2)) // nothing was cleaned
		f.flows.done.Deleted, f.flows.done.Duration = 5, 3*time.Second
		ok(f.engine.Settle(f.t.Context()))(f.t)
		f.tells("two applies and a Settle")
	})
}

func TestTheKernelIsAskedAsFarAsWanted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.conntrack.usage = conntrack.Usage{Count: 10, Max: 100,
		Stats: conntrack.Stats{Dropped: 4, EarlyDropped: 5}}
	f.conntrack.flows = []conntrack.Flow{to(1), to(1), to(2), to(99)}
	f.apply(with(with(onNode(), 1, 1), 2, 1))
	f.requireSeries(map[string]float64{"kernlb_conntrack_entries": 10,
		"kernlb_conntrack_entries_limit":                              100,
		"kernlb_conntrack_events_total{event=drop}":                   4,
		"kernlb_conntrack_events_total{event=early_drop}":             5,
		"kernlb_service_connections{namespace=default,service=svc-1}": none})
	require.Equal(t, 0, f.conntrack.dumped)

	g := newFixture(t, "nftables", func(c *metrics.Config) { c.Connections = true })
	g.conntrack.flows = f.conntrack.flows
	g.apply(with(with(onNode(), 1, 1), 2, 1))
	g.requireSeries(map[string]float64{
		"kernlb_service_connections{namespace=default,service=svc-1}": 2,
		"kernlb_service_connections{namespace=default,service=svc-2}": 1})
	g.conntrack.err = errBroken
	g.requireSeries(map[string]float64{
		"kernlb_conntrack_entries":                                    none,
		"kernlb_service_connections{namespace=default,service=svc-1}": none,
		"kernlb_scrape_errors_total{figure=conntrack}":                1,
		"kernlb_scrape_errors_total{figure=connections}":              1})

	h := newFixture(t, "nftables", func(c *metrics.Config) { c.Conntrack = nil })
	h.requireSeries(map[string]float64{"kernlb_conntrack_entries": none})
}

// to is a flow to a cluster IP.
func to(i int) conntrack.Flow {
	return conntrack.Flow{Protocol: conntrack.TCP, Original: conntrack.Tuple{
		Src: netip.MustParseAddrPort("10.244.0.1:40000"),
		Dst: netip.AddrPortFrom(clusterIP(i), 80)}}
}

// A kernel that does not answer delays a scrape for a limited time, and delays no apply.
func TestAScrapeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "nftables")
		f.conntrack.blocked = true
		done := make(chan struct{})
		go func() { f.scrape(); close(done) }()
		synctest.Wait()
		f.apply(with(onNode(), 1, 1))
		require.Equal(t, at(0), float64(time.Now().Unix()))
		<-done
		require.Equal(t, at(5), float64(time.Now().Unix()))
	})
}

// The age of a trigger is measured when its change is in the kernel.
func TestTheTimeFromTriggerToKernel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "nftables", func(c *metrics.Config) {
			c.Families = []servicemodel.Family{servicemodel.IPv4}
		})
		programmed := func(count, sum float64) {
			t.Helper()
			const name = "kubeproxy_network_programming_duration_seconds{ip_family="
			f.requireSeries(map[string]float64{name + "IPv4} count": count,
				name + "IPv4} sum": sum, name + "IPv6} count": none})
		}

		start := time.Now()
		time.Sleep(time.Second)
		r := f.engine.Set(with(onNode(), 1, 1))
		f.collector.Triggered(r, start, start.Add(500*time.Millisecond))
		f.collector.Triggered(r+1, start) // for a state that is not applied yet
		programmed(0, 0)
		time.Sleep(time.Second)
		f.backend.Fail(memory.CallCommit, 1, errBroken)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			_ = f.engine.Run(ctx, &dataplane.RunOptions{RetryMin: 4 * time.Second})
			close(done)
		}()

		synctest.Wait()
		programmed(0, 0)
		require.NoError(t, f.engine.Wait(t.Context(), r))
		took := time.Since(start).Seconds()
		programmed(2, math.Round((2*took-0.5)*1e6)/1e6)
		time.Sleep(time.Second)
		f.collector.Triggered(r, start) // reported after the apply
		programmed(3, math.Round((3*took-0.5)*1e6)/1e6)
		cancel()
		<-done
	})
}

func TestProbesAreCountedByTheirAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	eligible := true
	proxy := health.NewProxy(f.engine,
		&health.ProxyConfig{Eligible: func() bool { return eligible }})
	h := f.collector.CountProbes(proxy.Handler())
	get := func(path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}

	require.Equal(t, 200, get("/healthz"))
	eligible = false
	require.Equal(t, []int{503, 200, 404}, []int{get("/healthz"), get("/livez"), get("/other")})
	f.requireSeries(map[string]float64{
		"kubeproxy_proxy_healthz_total{code=200}": 1,
		"kubeproxy_proxy_healthz_total{code=503}": 1,
		"kubeproxy_proxy_livez_total{code=200}":   1,
		"kubeproxy_proxy_livez_total{code=404}":   none,
	})
}

func TestACollectorThatIsClosedCountsNoMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.collector.Close()
	f.apply(with(onNode(), 1, 1))
	f.requireSeries(map[string]float64{"kernlb_applies_total{result=changed}": 0})
}

func TestNamesAreAsPrometheusWantsThem(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.apply(with(onNode(), 1, 1))
	problems := ok(testutil.GatherAndLint(f.registry))(t)
	for _, p := range problems {
		// kube-proxy's gauge has that name
		require.Equal(t, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", p.Metric, p.Text)
	}
}

// A service whose clients are rejected, and the warning about the cause, are counted.
func TestRejectedClientsAndWarningsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.requireSeries(map[string]float64{"kernlb_services{outcome=reject}": none,
		"kernlb_warnings": 0})
	f.apply(with(with(onNode(), 1, 1), 2, 1, func(s *servicemodel.Service) {
		s.Ports[0].Name = "web" // the endpoint's port has no name
	}))
	f.requireSeries(map[string]float64{"kernlb_services{outcome=serve}": 1,
		"kernlb_services{outcome=reject}": 1, "kernlb_warnings": 1})
}

// The number of a program's problems is a metric.
func TestProblemsAreCounted(t *testing.T) {
	t.Parallel()
	for want, problems := range map[float64]func() []string{0: nil,
		2: func() []string { return []string{"web.yaml is broken", "db.yaml is missing"} }} {
		f := newFixture(t, "nftables", func(c *metrics.Config) { c.Problems = problems })
		f.requireSeries(map[string]float64{"kernlb_input_problems": want})
	}
}

// The number of silent endpoints is a metric, which is 0 if the program notices no silent
// endpoints.
func TestSilentEndpointsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.requireSeries(map[string]float64{"kernlb_silent_endpoints": 0})
	f = newFixture(t, "nftables", func(c *metrics.Config) {
		c.Silent = func() []silence.Change { return make([]silence.Change, 3) }
	})
	f.requireSeries(map[string]float64{"kernlb_silent_endpoints": 3})
}

// The findings of the checks of the node are counted by check and severity, notes are not.
func TestChecksOfTheNodeAreCounted(t *testing.T) {
	t.Parallel()
	r := node.Report{Findings: []node.Finding{{Check: node.Forwarding, Severity: node.Error},
		{Check: node.ForeignChains, Severity: node.Warning},
		{Check: node.ForeignChains, Severity: node.Warning},
		{Check: node.Neighbours, Severity: node.Note}}, Unknown: []string{"conntrack: no"}}
	f := newFixture(t, "nftables", func(c *metrics.Config) {
		c.Node = func(context.Context, *servicemodel.Table) *node.Report { return &r }
	})
	got := f.scrape()
	require.InDelta(t, 1, got[`kernlb_node_checks{check=forwarding,severity=error}`], 0)
	require.InDelta(t, 2, got[`kernlb_node_checks{check=foreign-chains,severity=warning}`], 0)
	require.InDelta(t, 0, got[`kernlb_node_checks{check=neighbours,severity=warning}`], 0)
	require.InDelta(t, 1, got[`kernlb_scrape_errors_total{figure=node}`], 0)
}
