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
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/servicemodel"
)

var none = math.NaN()

const noLocal = "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="

// at returns the time that many seconds after the start of a bubble, which is midnight UTC
// 2000-01-01.
func at(seconds float64) float64 { return 946684800 + seconds }

func TestAppliesAreCountedAsKubeProxyCountsSyncs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "nftables")
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds{ip_family=IPv4} count":          0,
			"kubeproxy_network_programming_duration_seconds{ip_family=IPv6} count":       0,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=IPv4}":          none,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=IPv4}":    0,
			"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=IPv4}": none,
			"kernlb_last_success_timestamp_seconds":                                      none,
			"kernlb_info{backend=nftables}":                                              1,
		})
		f.backend.Before("commit", func(context.Context) error {
			time.Sleep(2 * time.Second)
			return nil
		})
		f.apply(with(with(onNode(), 1, 3), 2, 2))
		f.apply(with(with(onNode(), 1, 3), 2, 4))
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds{ip_family=IPv4} count":         2,
			"kubeproxy_sync_proxy_rules_duration_seconds{ip_family=IPv6} sum":           4,
			"kubeproxy_sync_full_proxy_rules_duration_seconds{ip_family=IPv4} count":    1,
			"kubeproxy_sync_partial_proxy_rules_duration_seconds{ip_family=IPv4} count": 1,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=IPv4}":         at(4),
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=IPv4}":  at(2),
			"kubeproxy_sync_proxy_rules_service_changes_total":                          2,
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":                         3,
			"kubeproxy_sync_proxy_rules_service_changes_pending":                        0,
			`kernlb_applies_total{result=changed}`:                                      2,
			"kernlb_apply_duration_seconds sum":                                         4,
			"kernlb_phase_duration_seconds{phase=commit} sum":                           4,
			"kernlb_phase_duration_seconds{phase=observe} count":                        none,
			"kernlb_changes_total{type=added}":                                          4,
			"kernlb_changes_total{type=removed}":                                        0,
			"kernlb_readings_total":                                                     1,
			"kernlb_adopted_frontends":                                                  0,
			"kernlb_wanted_services":                                                    2,
			"kernlb_wanted_endpoints":                                                   7,
			"kernlb_held_services":                                                      2,
			"kernlb_held_frontends":                                                     2,
			"kernlb_held_endpoints":                                                     7,
			"kernlb_pending_seconds":                                                    0,
			"kernlb_running":                                                            0,
		})
		f.apply(with(with(onNode(), 1, 3), 2, 4))
		f.requireSeries(map[string]float64{"kernlb_applies_total{result=unchanged}": 1})
	})
}

func TestWhatWaitsIsPendingUntilItIsApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "nftables")
		f.apply(with(onNode(), 1, 1))
		f.engine.Set(with(with(onNode(), 1, 2), 2, 1))
		time.Sleep(30 * time.Second)
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_service_changes_pending":                       1,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                      2,
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=IPv6}": at(0),
			"kernlb_pending_seconds":                                                   30,
			"kernlb_wanted_services":                                                   2,
			"kernlb_wanted_endpoints":                                                  3,
			"kernlb_held_services":                                                     1,
			"kernlb_held_endpoints":                                                    1,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = f.engine.Run(ctx, nil); close(done) }()
		synctest.Wait()
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_service_changes_pending": 0,
			"kernlb_pending_seconds":                             0,
			"kernlb_running":                                     1,
		})
		cancel()
		<-done
	})
}

func TestFailuresRetriesAndRepairsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "iptables")
		state := with(onNode(), 1, 2)
		f.backend.Fail("commit", 1, errBroken)
		_, err := f.engine.Apply(t.Context(), state)
		require.Error(t, err)
		f.backend.Fail("commit", 2, dataplane.ErrConflict)
		f.apply(state)
		f.requireSeries(map[string]float64{
			"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=IPv4}": 1,
			"kernlb_failures_total{doing=apply,phase=commit}":                            1,
			"kernlb_applies_total{result=failed}":                                        1,
			"kernlb_applies_total{result=changed}":                                       1,
			"kernlb_write_conflicts_total{doing=apply}":                                  2,
			"kernlb_repairs_total":                                                       0,
		})
		f.backend.Kernel().Flush()
		f.backend.Kernel().AddDrift("a chain of nobody")
		f.apply(state)
		f.requireSeries(map[string]float64{
			"kernlb_repairs_total":                  1,
			"kernlb_repaired_total{type=added}":     1,
			"kernlb_repaired_total{type=foreign}":   1,
			"kernlb_changes_total{type=added}":      1,
			"kernlb_last_failure_timestamp_seconds": at(0),
			"kernlb_held_endpoints":                 2,
		})
		ctx, cancel := context.WithCancel(t.Context())
		f.backend.Before("commit", func(context.Context) error {
			cancel()
			return ctx.Err()
		})
		_, err = f.engine.Apply(ctx, with(state, 2, 1))
		require.ErrorIs(t, err, context.Canceled)
		f.requireSeries(map[string]float64{"kernlb_applies_total{result=failed}": 1})
	})
}

func TestServicesThatAreLeftOutAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	s := with(with(with(with(onNode(), 1, 1), 2, 1, invalid), 3, 1, sharing(1)), 4, 1, localOnly)
	s = with(s, 5, 0, localOnly) // it has no endpoint anywhere
	f.apply(s)
	f.apply(s)
	f.requireSeries(map[string]float64{
		"kernlb_refused_services":                 1,
		"kernlb_refusals_total":                   1,
		"kernlb_claim_conflicts":                  1,
		"kernlb_wanted_services":                  5,
		"kernlb_held_services":                    3,
		noLocal + "IPv4,traffic_policy=internal}": 1,
		noLocal + "IPv4,traffic_policy=external}": 1,
		noLocal + "IPv6,traffic_policy=external}": 0,
	})
	f.apply(s.WithoutService(serviceName(2)).WithoutService(serviceName(4)))
	f.requireSeries(map[string]float64{
		"kernlb_refused_services":                 0,
		"kernlb_refusals_total":                   1,
		noLocal + "IPv4,traffic_policy=internal}": 0,
		noLocal + "IPv4,traffic_policy=external}": 0,
	})
}

// A program that starts adopts the services in the kernel. A new backend gets those of the old one.
func TestAdoptionSwitchesAndCleanups(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	before := with(with(onNode(), 1, 1), 2, 1)
	ok(dataplane.New(memory.New(f.backend.Kernel()), nil).Apply(t.Context(), before))(t)
	f.backend.HeedHints(true) // a second step finds svc-2
	f.apply(with(onNode(), 1, 1))
	f.requireSeries(map[string]float64{
		"kernlb_adopted_frontends": 2, "kernlb_held_frontends": 1, "kernlb_held_endpoints": 1,
		"kernlb_changes_total{type=removed}": 1})
	ok(f.engine.Switch(t.Context(), &named{Backend: memory.New(nil), name: "ipvs"}, nil))(t)
	f.requireSeries(map[string]float64{
		"kernlb_info{backend=ipvs}": 1, "kernlb_info{backend=nftables}": none,
		"kernlb_switches_total{backend=ipvs}": 1, "kernlb_adopted_frontends": 0,
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=IPv4}": 0})
	sent := f.scrape()["kernlb_kernel_messages_total{backend=ipvs}"]
	require.Positive(t, sent)
	stats := ok(f.engine.Cleanup(t.Context()))(t)
	f.requireSeries(map[string]float64{
		"kernlb_held_frontends": 0, "kernlb_held_services": 0, "kernlb_wanted_endpoints": 0,
		"kernlb_kernel_messages_total{backend=ipvs}": sent + float64(stats.Messages)})
}

// A reviewed change set counts like any other.
func TestChangesOfAPlanAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	preview := ok(f.engine.Plan(t.Context(), with(onNode(), 1, 1)))(t)
	text := ok(json.Marshal(preview.Changes))(t)
	var changes servicemodel.ChangeSet
	require.NoError(t, json.Unmarshal(text, &changes))
	ok(f.engine.ApplyChanges(t.Context(), &changes))(t)
	f.requireSeries(map[string]float64{"kernlb_changes_total{type=added}": 1,
		"kernlb_held_frontends": 1, "kernlb_wanted_services": 0})
}

func TestFlowsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "nftables")
	f.flows.done = conntrack.CleanResult{Deleted: 3, Reset: 1, Duration: time.Second}
	f.flows.draining = 2
	f.apply(with(onNode(), 1, 1))
	f.apply(with(onNode(), 1, 2)) // nothing was cleaned
	f.flows.done.Deleted, f.flows.done.Duration = 5, 3*time.Second
	ok(f.engine.Settle(t.Context()))(t)
	f.requireSeries(map[string]float64{
		"kernlb_flows_deleted_total": 5, "kernlb_flows_reset_total": 1,
		"kernlb_draining_endpoints": 2,
		"kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family=IPv4} count": 2,
		"kubeproxy_conntrack_reconciler_sync_duration_seconds{ip_family=IPv6} sum":   3,
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
		f.backend.Fail("commit", 1, errBroken)
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

// The number of a program's problems is a metric.
func TestProblemsAreCounted(t *testing.T) {
	t.Parallel()
	for want, problems := range map[float64]func() []string{0: nil,
		2: func() []string { return []string{"web.yaml is broken", "db.yaml is missing"} }} {
		f := newFixture(t, "nftables", func(c *metrics.Config) { c.Problems = problems })
		f.requireSeries(map[string]float64{"kernlb_input_problems": want})
	}
}
