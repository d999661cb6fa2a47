package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maker makes metrics, and keeps a list of them.
type maker struct {
	all []prometheus.Collector
	set []*values // those that each scrape sets
}

// counter makes a counter without labels. It exists from the beginning, with the value 0.
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

// values are the values of gauges, or of counters that come from elsewhere. Each scrape sets them
// anew. Without a value they do not exist.
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
