package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Buckets of kube-proxy 1.36 (pkg/proxy/metrics/metrics.go). The result of its MergeBuckets begins
// with 0.
var (
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15)
	programmingBuckets = slices.Concat([]float64{0}, prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7))
)

// proxyMetrics are the metrics of kube-proxy, with its names, labels and texts.
type proxyMetrics struct {
	families                []servicemodel.Family
	sync, full, partial     *prometheus.HistogramVec
	programming, reconciled *prometheus.HistogramVec
	synced, queued, noLocal *values

	endpointChanges, serviceChanges prometheus.Counter
	endpointPending, servicePending *values

	restoreFailures, syncFailures, cleanupFailures *prometheus.CounterVec
	healthz, livez                                 *prometheus.CounterVec
}

const family = "ip_family"

func newProxyMetrics(r *maker, families []servicemodel.Family) *proxyMetrics {
	const sync = "kubeproxy_sync_proxy_rules_"
	histogram := func(name, help string) *prometheus.HistogramVec {
		return r.histograms("kubeproxy_"+name+"_duration_seconds", help, syncBuckets, family)
	}
	return &proxyMetrics{
		families: families,
		sync:     histogram("sync_proxy_rules", "SyncProxyRules latency in seconds"),
		full: histogram("sync_full_proxy_rules",
			"SyncProxyRules latency in seconds for full resyncs"),
		partial: histogram("sync_partial_proxy_rules",
			"SyncProxyRules latency in seconds for partial resyncs"),
		reconciled: histogram("conntrack_reconciler_sync",
			"ReconcileConntrackFlowsLatency latency in seconds"),
		programming: r.histograms("kubeproxy_network_programming_duration_seconds",
			"In Cluster Network Programming Latency in seconds", programmingBuckets, family),
		synced: r.gauge(sync+"last_timestamp_seconds",
			"The last time proxy rules were successfully synced", family),
		queued: r.gauge(sync+"last_queued_timestamp_seconds",
			"The last time a sync of proxy rules was queued", family),
		noLocal: r.gauge(sync+"no_local_endpoints_total",
			"Number of services with a Local traffic policy and no endpoints", "traffic_policy",
			family),
		endpointChanges: r.counter(sync+"endpoint_changes_total",
			"Cumulative proxy rules Endpoint changes"),
		endpointPending: r.gauge(sync+"endpoint_changes_pending",
			"Pending proxy rules Endpoint changes"),
		serviceChanges: r.counter(sync+"service_changes_total",
			"Cumulative proxy rules Service changes"),
		servicePending: r.gauge(sync+"service_changes_pending",
			"Pending proxy rules Service changes"),
		restoreFailures: r.counters(sync+"iptables_restore_failures_total",
			"Cumulative proxy iptables restore failures", family),
		syncFailures: r.counters(sync+"nftables_sync_failures_total",
			"Cumulative proxy nftables sync failures", family),
		cleanupFailures: r.counters(sync+"nftables_cleanup_failures_total",
			"Cumulative proxy nftables cleanup failures", family),
		healthz: r.counters("kubeproxy_proxy_healthz_total", "Cumulative proxy healthz HTTP status",
			"code"),
		livez: r.counters("kubeproxy_proxy_livez_total", "Cumulative proxy livez HTTP status",
			"code"),
	}
}

// begin creates the metrics of a backend that exist from the beginning. They start at 0, so that a
// rate includes the first event.
func (p *proxyMetrics) begin(backend string) {
	for _, f := range p.families {
		for _, h := range []*prometheus.HistogramVec{p.sync, p.full, p.partial, p.programming,
			p.reconciled} {
			h.WithLabelValues(f.String())
		}

		for _, c := range p.failures(backend) {
			c.WithLabelValues(f.String())
		}
	}
}

// failures returns a backend's counters of failures: of commits, and of later work.
func (p *proxyMetrics) failures(backend string) []*prometheus.CounterVec {
	switch backend {
	case "nftables":
		return []*prometheus.CounterVec{p.syncFailures, p.cleanupFailures}
	case "iptables", "ipvs":
		return []*prometheus.CounterVec{p.restoreFailures}
	}

	return nil
}

// observe adds a duration to a histogram in all families.
func (p *proxyMetrics) observe(h *prometheus.HistogramVec, d time.Duration) {
	for _, f := range p.families {
		h.WithLabelValues(f.String()).Observe(d.Seconds())
	}
}

// applied counts an apply with its duration, and the numbers of services and endpoints that it
// changed.
func (p *proxyMetrics) applied(r *dataplane.Result, services, endpoints int) {
	p.observe(p.sync, r.Duration)
	if r.Observed {
		p.observe(p.full, r.Duration)
	} else {
		p.observe(p.partial, r.Duration)
	}

	p.endpointChanges.Add(float64(endpoints))
	p.serviceChanges.Add(float64(services))
}

func (p *proxyMetrics) failed(ev *dataplane.Failed, took time.Duration) {
	if ev.Doing != doingSettle {
		p.observe(p.sync, took)
	}
	counters := p.failures(ev.Backend)
	var c *prometheus.CounterVec
	switch {
	case ev.Phase == dataplane.PhaseCommit && len(counters) > 0:
		c = counters[0]
	case ev.Doing == doingSettle && len(counters) > 1:
		c = counters[1]
	default:
		return
	}

	for _, f := range p.families {
		c.WithLabelValues(f.String()).Inc()
	}
}

// update sets the gauges. services and endpoints are the pending changes.
func (p *proxyMetrics) update(s *dataplane.Status, services, endpoints int, t *tally) {
	p.endpointPending.set(float64(endpoints))
	p.servicePending.set(float64(services))
	for _, f := range p.families {
		p.synced.setTime(s.Succeeded, f.String())
		p.queued.setTime(s.Asked, f.String())
		for _, policy := range []string{"internal", "external"} {
			p.noLocal.set(float64(t.noLocal[localPolicy{f, policy}]), policy, f.String())
		}
	}
}
