package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maker creates metrics, and lists them.
type maker struct {
	all []prometheus.Collector
	set []*values // the metrics that each scrape sets
}

// counter creates a counter without labels, which starts at 0.
func (r *maker) counter(name, help string) prometheus.Counter {
	return r.counters(name, help).WithLabelValues()
}

func (r *maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.all = append(r.all, c)
	return c
}

func (r *maker) histograms(name, help string, buckets []float64,
	labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(
		prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.all = append(r.all, h)
	return h
}

// values are gauges, or counters whose values come from elsewhere. Each scrape sets all values
// again. A metric without a value is not exported.
type values struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	now  []prometheus.Metric
}

func (r *maker) values(kind prometheus.ValueType, name, help string, labels ...string) *values {
	v := &values{desc: prometheus.NewDesc(name, help, labels, nil), kind: kind}
	r.all, r.set = append(r.all, v), append(r.set, v)
	return v
}

func (r *maker) gauge(name, help string, labels ...string) *values {
	return r.values(prometheus.GaugeValue, name, help, labels...)
}

func (v *values) set(x float64, labels ...string) {
	v.now = append(v.now, prometheus.MustNewConstMetric(v.desc, v.kind, x, labels...))
}

// setTime sets the gauge to seconds since 1970, unless the time is zero.
func (v *values) setTime(t time.Time, labels ...string) {
	if !t.IsZero() {
		v.set(float64(t.UnixNano())/1e9, labels...)
	}
}

// Describe implements prometheus.Collector.
func (v *values) Describe(to chan<- *prometheus.Desc) { to <- v.desc }

// Collect implements prometheus.Collector.
func (v *values) Collect(to chan<- prometheus.Metric) {
	for _, m := range v.now {
		to <- m
	}
}
