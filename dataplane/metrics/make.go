package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maker makes metrics, and keeps a list of them.
type maker struct{ made []prometheus.Collector }

func (r *maker) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.made = append(r.made, c)
	return c
}

func (r *maker) histogram(name, help string, buckets []float64,
	labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(
		prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.made = append(r.made, h)
	return h
}

// gauge is a gauge that does not exist until it is set.
type gauge struct{ *prometheus.GaugeVec }

func (r *maker) gauge(name, help string, labels ...string) gauge {
	g := gauge{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)}
	r.made = append(r.made, g)
	return g
}

func (g gauge) set(v float64, labels ...string) { g.WithLabelValues(labels...).Set(v) }

// setTime sets the gauge to seconds since 1970. It removes the gauge for the zero time.
func (g gauge) setTime(t time.Time, labels ...string) {
	if t.IsZero() {
		g.DeleteLabelValues(labels...)
		return
	}
	g.set(float64(t.UnixNano())/1e9, labels...)
}

// counts are counters whose values come from elsewhere. They do not exist until they are set.
type counts struct {
	desc   *prometheus.Desc
	values []prometheus.Metric
}

func (r *maker) counts(name, help string, labels ...string) *counts {
	c := &counts{desc: prometheus.NewDesc(name, help, labels, nil)}
	r.made = append(r.made, c)
	return c
}

// add adds a counter. It exists until the values are cleared.
func (c *counts) add(v float64, labels ...string) {
	c.values = append(c.values,
		prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, v, labels...))
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *counts) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.values {
		to <- m
	}
}
