package metrics

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes a [Collector]. A nil *Config is the zero Config.
type Config struct {
	// Families are the values of the label ip_family. Nil means both.
	Families []servicemodel.Family
	// Flows is the engine's keeper of flows, or nil without a keeper.
	Flows Flows
	// Conntrack reports the size and limit of the conntrack table at each scrape. Nil means no such
	// metrics.
	Conntrack Conntrack
	// Connections counts the connections of each service at each scrape, by a dump of the conntrack
	// table. Conntrack must be set. A million connections cost about a second of CPU. Each service
	// with connections has a time series.
	Connections bool
	// Counters are the counters of services, read at each scrape: counters.Counters or
	// ipvs.Counters. Conntrack must also be set, because the counters need the addresses of the
	// node. A scrape costs a dump of the counters, and each service has five time series. They
	// start at zero at the first scrape after an apply, and never decrease. Nil means no such
	// metrics.
	Counters counters.Source
	// Problems returns problems of the program's input that the engine does not see, such as a
	// broken manifest, one line each. Nil means no problems.
	Problems func() []string
	// Silent returns the endpoints that do not answer clients, ejected or on trial, such as
	// [silence.Follower.Silent]. Nil means no endpoints.
	Silent func() []silence.Change
	// Node checks the node for the services in the kernel, at each scrape, such as
	// [node.Checker.Report]. Nil means no such metrics.
	Node func(context.Context, *servicemodel.Table) *node.Report
	// Timeout is the maximum time of a scrape's requests to the kernel. Zero means 5 s. Values that
	// could not be read are left out, and counted in kernlb_scrape_errors_total.
	Timeout time.Duration
}

// Flows has the methods of a [flows.Keeper] that a [Collector] needs.
type Flows interface {
	Totals() conntrack.CleanResult
	Draining() int
}

// Conntrack has the methods of a [conntrack.Table] that a [Collector] needs.
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

// Collector collects metrics about an engine. Create it with [New]. Its methods are safe for
// concurrent use. A program with several engines registers one collector for each, with
// [prometheus.WrapRegistererWith] and a label that distinguishes them.
type Collector struct {
	engine      *dataplane.Engine
	cfg         Config
	unsubscribe func()

	scrape  sync.Mutex // one scrape at a time, from setting values to reading them
	made    maker
	serving health.ServingCache

	mu    sync.Mutex // protects the fields below
	proxy *proxyMetrics
	own   *ownMetrics
	tally tally
	// wanted is the last desired state whose endpoints a scrape counted.
	wanted    servicemodel.State
	endpoints int
	// asked is the state of the last apply, revision its number, and at the time at which that
	// apply ended.
	asked    servicemodel.State
	revision dataplane.Revision
	at       time.Time
	// triggers are the triggers of states that are not applied yet, see [Collector.Triggered].
	triggers []trigger
	// cleaned is the work of the keeper of flows until the last event.
	cleaned conntrack.CleanResult
	begun   bool // something was applied
}

// New returns a collector that observes an engine until [Collector.Close]. Call it before the
// engine's first apply, because earlier events are not counted. A nil engine counts as idle.
func New(e *dataplane.Engine, cfg *Config) *Collector {
	e = cmp.Or(e, new(dataplane.Engine))
	c := &Collector{engine: e, cfg: *cmp.Or(cfg, &Config{})}
	if c.cfg.Families == nil {
		c.cfg.Families = []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6}
	}
	c.cfg.Timeout = cmp.Or(c.cfg.Timeout, 5*time.Second)
	c.proxy, c.own = newProxyMetrics(&c.made, c.cfg.Families), newOwnMetrics(&c.made)
	s := e.Status()
	c.begun, c.asked = s.Totals.Applies > 0, s.State
	if c.cfg.Flows != nil {
		c.cleaned = c.cfg.Flows.Totals()
	}
	c.proxy.begin(s.Backend)
	c.unsubscribe = e.Subscribe(c.observe)
	return c
}

// Close stops observing. The collected values can still be scraped.
func (c *Collector) Close() { c.unsubscribe() }

// Describe implements [prometheus.Collector]: it sends the descriptions of all metrics.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.made.all {
		m.Describe(to)
	}
}

// Collect implements [prometheus.Collector]: it sends the current values of all metrics.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.scrape.Lock()
	defer c.scrape.Unlock()
	for _, v := range c.made.set {
		v.now = nil
	}
	status := c.engine.Status()
	if c.cfg.Flows != nil {
		c.own.draining.set(float64(c.cfg.Flows.Draining()))
	}
	c.askKernel(&status)
	c.own.serves(c.serving.Of(status))
	c.update(&status)
	for _, m := range c.made.all {
		m.Collect(to)
	}
}

func (c *Collector) update(s *dataplane.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, growth := s.State.Since(c.wanted)
	c.endpoints += growth
	c.wanted = s.State
	services, endpoints := 0, 0
	if s.Pending() {
		services, endpoints, _ = s.State.Since(c.asked)
	}
	c.proxy.update(s, services, endpoints, &c.tally)
	c.own.update(s, c.endpoints, &c.tally)
	problems := 0
	if c.cfg.Problems != nil {
		problems = len(c.cfg.Problems())
	}
	c.own.wrong.set(float64(problems))
	silent := 0
	if c.cfg.Silent != nil {
		silent = len(c.cfg.Silent())
	}
	c.own.silent.set(float64(silent))
}
