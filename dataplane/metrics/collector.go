package metrics

import (
	"context"
	"iter"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes a [Collector]. A nil *Config is the zero Config.
type Config struct {
	// Families are the values that the label ip_family takes. Nil means both.
	Families []servicemodel.Family
	// Flows is the keeper of flows that the engine was given; nil if it has none.
	Flows Flows
	// Conntrack is asked at each scrape how full the table of connections is. Nil means that this
	// is not asked.
	Conntrack Conntrack
	// Connections counts the connections of each service at each scrape, by a dump of the table of
	// connections, for which Conntrack must be set. It costs about a second of CPU for a million
	// connections, and a time series for each service that has any.
	Connections bool
	// Counters are what services have had, which is read at each scrape, for which Conntrack must
	// be set, too: it knows the addresses of the node. It is counters.Counters or ipvs.Counters. It
	// costs a dump of the counters, and five time series for each service. Nil: none.
	Counters counters.Source
	// Timeout is how long a scrape asks the kernel at most. Zero means 5 s. What cannot be had is
	// left out, and counted as kernlb_scrape_errors_total.
	Timeout time.Duration
}

// Flows is what a [Collector] asks of a [flows.Keeper].
type Flows interface {
	Totals() conntrack.CleanResult
	Draining() int
}

// Conntrack is what a [Collector] asks of a [conntrack.Table].
type Conntrack interface {
	Usage(ctx context.Context) (conntrack.Usage, error)
	NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error)
	Flows(ctx context.Context, f conntrack.Filter) iter.Seq2[conntrack.Flow, error]
}

var (
	_ Flows                = (*flows.Keeper)(nil)
	_ Conntrack            = (*conntrack.Table)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// Collector collects what an engine does. It must be made by [New]. Its methods may be called by
// several goroutines. A program with several engines registers one for each, with
// [prometheus.WrapRegistererWith] and a label that tells them apart.
type Collector struct {
	engine      *dataplane.Engine
	cfg         Config
	unsubscribe func()

	scrape sync.Mutex // one at a time, from setting gauges to reading them
	all    []prometheus.Collector

	mu    sync.Mutex // of what follows
	proxy *proxyMetrics
	own   *ownMetrics
	tally tally
	// wanted is the state whose endpoints were counted last, at a scrape.
	wanted    servicemodel.State
	endpoints int
	// asked is what the last apply was asked for, revision its number, and at when it ended.
	asked    servicemodel.State
	revision dataplane.Revision
	at       time.Time
	// triggers wait for an apply, see [Collector.Triggered].
	triggers []trigger
	// cleaned is what the keeper of flows had done by the last event.
	cleaned conntrack.CleanResult
	begun   bool // something was applied
}

// New returns a collector of an engine, which it observes until [Collector.Close]. Make it before
// the engine's first apply: what came before is not counted.
func New(e *dataplane.Engine, cfg *Config) *Collector {
	c := &Collector{engine: e}
	if cfg != nil {
		c.cfg = *cfg
	}
	if c.cfg.Families == nil {
		c.cfg.Families = []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6}
	}
	if c.cfg.Timeout == 0 {
		c.cfg.Timeout = 5 * time.Second
	}
	r := &maker{}
	c.proxy, c.own = newProxyMetrics(r, c.cfg.Families), newOwnMetrics(r)
	c.all = r.made
	s := e.Status()
	c.begun, c.asked = s.Totals.Applies > 0, s.State
	if c.cfg.Flows != nil {
		c.cleaned = c.cfg.Flows.Totals()
	}
	c.proxy.begin(s.Backend)
	c.unsubscribe = e.Subscribe(c.observe)
	return c
}

// Close ends the observing. What was collected can still be scraped.
func (c *Collector) Close() { c.unsubscribe() }

// Describe tells a registry which metrics there are.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.all {
		m.Describe(to)
	}
}

// Collect sends all metrics, as they are now.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.scrape.Lock()
	defer c.scrape.Unlock()
	status := c.engine.Status()
	if c.cfg.Flows != nil {
		c.own.draining.set(float64(c.cfg.Flows.Draining()))
	}
	c.askKernel(&status)
	c.update(&status)
	for _, m := range c.all {
		m.Collect(to)
	}
}

// update sets the gauges.
func (c *Collector) update(s *dataplane.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints += s.State.Since(c.wanted).Growth
	c.wanted = s.State
	pending := s.State.Since(c.asked)
	if !s.Pending() {
		pending = servicemodel.Edits{}
	}
	c.proxy.update(s, pending, &c.tally)
	c.own.update(s, c.endpoints, &c.tally)
}
