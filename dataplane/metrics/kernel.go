package metrics

import (
	"context"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
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
	m.conntrackEvents.values = map[string]float64{
		"invalid": float64(u.Stats.Invalid), "insert_failed": float64(u.Stats.InsertFailed),
		"drop": float64(u.Stats.Dropped), "early_drop": float64(u.Stats.EarlyDropped),
		"clash_resolve": float64(u.Stats.ClashesResolved),
		"chaintoolong":  float64(u.Stats.ChainsTooLong),
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
