package metrics

import (
	"context"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/servicemodel"
)

// askKernel asks for what only the kernel knows, as far as the configuration says so. The engine
// does not wait for it.
func (c *Collector) askKernel(s *dataplane.Status) {
	if c.cfg.Conntrack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer cancel()
	c.own.askUsage(ctx, c.cfg.Conntrack)
	if c.cfg.Connections {
		c.own.askConnections(ctx, c.cfg.Conntrack, s.Held)
	}
	if c.cfg.Counters != nil {
		c.own.askCounters(ctx, c.cfg.Conntrack, c.cfg.Counters, s.Held)
	}
}

// askUsage asks how full the table of connections is.
func (m *ownMetrics) askUsage(ctx context.Context, t Conntrack) {
	errs := m.scrapeErrors.WithLabelValues("conntrack")
	m.conntrackCount.Reset()
	m.conntrackMax.Reset()
	m.conntrackEvents.values = nil
	u, err := t.Usage(ctx)
	if err != nil {
		errs.Inc()
		return
	}
	m.conntrackCount.set(float64(u.Count))
	m.conntrackMax.set(float64(u.Max))
	for event, n := range map[string]uint64{
		"invalid": u.Stats.Invalid, "insert_failed": u.Stats.InsertFailed,
		"drop": u.Stats.Dropped, "early_drop": u.Stats.EarlyDropped,
		"clash_resolve": u.Stats.ClashesResolved, "chaintoolong": u.Stats.ChainsTooLong,
	} {
		m.conntrackEvents.add(float64(n), event)
	}
}

// askConnections counts the flows of each service that the kernel holds.
func (m *ownMetrics) askConnections(ctx context.Context, t Conntrack, held *servicemodel.Table) {
	errs := m.scrapeErrors.WithLabelValues("connections")
	m.connections.Reset()
	counts, err := countFlows(ctx, t, held)
	if err != nil {
		errs.Inc()
		return
	}
	for name, n := range counts {
		m.connections.set(float64(n), name.Namespace, name.Name)
	}
}

// everywhere are the ranges of all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// askCounters reads what each service that the kernel holds has had.
func (m *ownMetrics) askCounters(ctx context.Context, t Conntrack, from counters.Source,
	held *servicemodel.Table) {
	all := []*counts{m.serviceConnections, m.servicePackets, m.serviceBytes}
	for _, c := range all {
		c.values = nil
	}
	had, err := sumsOf(ctx, t, from, held)
	if err != nil {
		m.scrapeErrors.WithLabelValues("counters").Inc()
		return
	}
	for name, v := range had {
		m.serviceConnections.add(float64(v.Connections), name.Namespace, name.Name)
		m.servicePackets.add(float64(v.PacketsIn), name.Namespace, name.Name, "in")
		m.servicePackets.add(float64(v.PacketsOut), name.Namespace, name.Name, "out")
		m.serviceBytes.add(float64(v.BytesIn), name.Namespace, name.Name, "in")
		m.serviceBytes.add(float64(v.BytesOut), name.Namespace, name.Name, "out")
	}
}

// sumsOf adds up what the frontends of each service have had.
func sumsOf(ctx context.Context, t Conntrack, from counters.Source, held *servicemodel.Table) (
	map[servicemodel.Name]counters.Values, error) {
	here, err := t.NodeAddrs(everywhere)
	if err != nil {
		return nil, err
	}
	r, err := from.Read(ctx)
	if err != nil {
		return nil, err
	}
	sums, had := r.Of(held, here), map[servicemodel.Name]counters.Values{}
	for f := range held.Frontends() {
		had[f.Service.Name] = had[f.Service.Name].Plus(sums.Frontend(f.Key))
	}
	return had, nil
}

// countFlows counts the flows that were sent to each service of a table.
func countFlows(ctx context.Context, t Conntrack, held *servicemodel.Table) (
	map[servicemodel.Name]int, error) {
	var node []netip.Addr
	if ranges := held.Rules().NodePorts; len(ranges) > 0 {
		var err error
		if node, err = t.NodeAddrs(ranges); err != nil {
			return nil, err
		}
	}
	index, counts := flows.NewIndex(held, node), map[servicemodel.Name]int{}
	for f, err := range t.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return nil, err
		}
		if frontend := index.Frontend(&f); frontend != nil {
			counts[frontend.Service.Name]++
		}
	}
	return counts, nil
}
