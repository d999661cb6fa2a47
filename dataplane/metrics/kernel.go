package metrics

import (
	"context"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/servicemodel"
)

// askKernel reads the configured values that the engine does not know from the kernel. The engine
// does not wait for this.
func (c *Collector) askKernel(s *dataplane.Status) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer cancel()
	if c.cfg.Node != nil {
		c.own.checks(c.cfg.Node(ctx, s.Held))
	}
	if c.cfg.Conntrack == nil {
		return
	}
	m, table := c.own, c.cfg.Conntrack
	if errs := m.scrapeErrors.WithLabelValues("conntrack"); m.askUsage(ctx, table) != nil {
		errs.Inc()
	}
	if c.cfg.Connections {
		errs := m.scrapeErrors.WithLabelValues("connections")
		if m.askConnections(ctx, table, s.Held) != nil {
			errs.Inc()
		}
	}

	if c.cfg.Counters != nil && m.askCounters(ctx, table, c.cfg.Counters, s.Held) != nil {
		m.scrapeErrors.WithLabelValues("counters").Inc()
	}
}

// checks sets the number of findings of each check of the node.
func (m *ownMetrics) checks(r *node.Report) {
	if len(r.Unknown) > 0 {
		m.scrapeErrors.WithLabelValues("node").Inc()
	}
	for _, check := range node.Checks() {
		for _, severity := range []node.Severity{node.Error, node.Warning} {
			m.nodeFindings.set(float64(r.Count(check, severity)), string(check), string(severity))
		}
	}
}

// askUsage reads the size and limit of the conntrack table.
func (m *ownMetrics) askUsage(ctx context.Context, t Conntrack) error {
	u, err := t.Usage(ctx)
	if err != nil {
		return err
	}
	m.conntrackCount.set(float64(u.Count))
	m.conntrackMax.set(float64(u.Max))
	for event, n := range map[string]uint64{
		"invalid": u.Stats.Invalid, "insert_failed": u.Stats.InsertFailed,
		"drop": u.Stats.Dropped, "early_drop": u.Stats.EarlyDropped,
		"clash_resolve": u.Stats.ClashesResolved, "chaintoolong": u.Stats.ChainsTooLong,
	} {
		m.conntrackEvents.set(float64(n), event)
	}

	return nil
}

// askConnections counts the flows to each service in the kernel.
func (m *ownMetrics) askConnections(ctx context.Context, t Conntrack,
	held *servicemodel.Table) error {
	var node []netip.Addr
	if ranges := held.Rules().NodePorts; len(ranges) > 0 {
		var err error
		if node, err = t.NodeAddrs(ranges); err != nil {
			return err
		}
	}

	index, counts := flows.NewIndex(held, node), map[servicemodel.Name]int{}
	for f, err := range t.Flows(ctx, conntrack.Filter{}) {
		if err != nil {
			return err
		}
		if frontend := index.Frontend(&f); frontend != nil {
			counts[frontend.Service.Name]++
		}
	}

	for name, n := range counts {
		m.connections.set(float64(n), name.Namespace, name.Name)
	}
	return nil
}

// everywhere are the ranges of all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// askCounters reads the counters of each service in the kernel since the first scrape.
func (m *ownMetrics) askCounters(ctx context.Context, t Conntrack, from counters.Source,
	held *servicemodel.Table) error {
	if err := m.had.update(ctx, t, from, held); err != nil {
		return err
	}
	for name, v := range m.had.services {
		m.serviceConnections.set(float64(v.Connections), name.Namespace, name.Name)
		m.servicePackets.set(float64(v.PacketsIn), name.Namespace, name.Name, "in")
		m.servicePackets.set(float64(v.PacketsOut), name.Namespace, name.Name, "out")
		m.serviceBytes.set(float64(v.BytesIn), name.Namespace, name.Name, "in")
		m.serviceBytes.set(float64(v.BytesOut), name.Namespace, name.Name, "out")
	}

	return nil
}

// history adds up the growth between readings, because the sum of a reading may decrease: a service
// loses addresses, and the kernel forgets flows without packets. Prometheus treats a counter that
// decreases as restarted from zero, so the rate would jump by the whole remaining value.
type history struct {
	last     map[counters.Pair]counters.Values // nil before the first reading
	services map[servicemodel.Name]counters.Values
}

// update adds the growth since the last reading to the services in the kernel. If held is nil, the
// kernel's services are unknown.
func (h *history) update(ctx context.Context, t Conntrack, from counters.Source,
	held *servicemodel.Table) error {
	if held == nil {
		return nil
	}
	here, err := t.NodeAddrs(everywhere)
	if err != nil {
		return err
	}
	r, err := from.Read(ctx)
	if err != nil {
		return err
	}
	grown := counters.Reading{Pairs: map[counters.Pair]counters.Values{}}
	if h.last != nil {
		grown.Pairs = growth(h.last, r.Pairs)
	}
	h.last = r.Pairs
	sums, had := grown.Of(held, here), map[servicemodel.Name]counters.Values{}
	for f := range held.Frontends() {
		n := f.Service.Name
		if _, ok := had[n]; !ok {
			had[n] = h.services[n]
		}
		had[n] = had[n].Plus(sums.Frontend(f.Key))
	}

	h.services = had
	return nil
}

// growth returns the counts between two readings. IPVS moves the counts of removed endpoints to a
// pair without an endpoint. growth does not count these moved counts twice.
func growth(before, now map[counters.Pair]counters.Values) map[counters.Pair]counters.Values {
	grown, gone := map[counters.Pair]counters.Values{}, map[counters.Pair]counters.Values{}
	for p, had := range before {
		_, lost := between(had, now[p])
		p.Endpoint = netip.AddrPort{}
		gone[p] = gone[p].Plus(lost)
	}

	for p, v := range now {
		grown[p], _ = between(before[p], v)
		if !p.Endpoint.IsValid() {
			grown[p] = grown[p].Since(gone[p])
		}
	}

	return grown
}

// between returns the growth between two values, and the earlier values of the numbers that
// decreased. A number that decreased has restarted from zero, independently of the other numbers:
// after a day without a new connection, the kernel forgets the connections of a pair, but still
// counts its packets.
func between(had, now counters.Values) (grown, lost counters.Values) {
	for _, n := range [...]struct {
		had, now    uint64
		grown, lost *uint64
	}{
		{had.Connections, now.Connections, &grown.Connections, &lost.Connections},
		{had.PacketsIn, now.PacketsIn, &grown.PacketsIn, &lost.PacketsIn},
		{had.BytesIn, now.BytesIn, &grown.BytesIn, &lost.BytesIn},
		{had.PacketsOut, now.PacketsOut, &grown.PacketsOut, &lost.PacketsOut},
		{had.BytesOut, now.BytesOut, &grown.BytesOut, &lost.BytesOut},
	} {
		if n.now < n.had {
			*n.grown, *n.lost = n.now, n.had
		} else {
			*n.grown = n.now - n.had
		}
	}

	return grown, lost
}
