package metrics_test

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/servicemodel"
)

// fakeCounters are counters that have some values, or fail.
type fakeCounters struct {
	counters.Reading
	err error
}

func (c *fakeCounters) Read(context.Context) (*counters.Reading, error) { return &c.Reading, c.err }

// had returns counters of services by their numbers.
func had(values map[int]counters.Values) *fakeCounters {
	c := &fakeCounters{Reading: counters.Reading{Pairs: map[counters.Pair]counters.Values{}}}
	for i, v := range values {
		c.Pairs[counters.Pair{Protocol: servicemodel.TCP, Dst: netip.AddrPortFrom(clusterIP(i), 80),
			Endpoint: netip.MustParseAddrPort("10.244.9.9:8080")}] = v
	}

	return c
}

// grow increases the counters of a pair of service 1: its cluster IP or another address, and an
// endpoint.
func (c *fakeCounters) grow(dst netip.Addr, endpoint string, by counters.Values) {
	p := counters.Pair{Protocol: servicemodel.TCP, Dst: netip.AddrPortFrom(dst, 80)}
	if endpoint != "" {
		p.Endpoint = netip.MustParseAddrPort(endpoint)
	}
	c.Pairs = maps.Clone(c.Pairs)
	c.Pairs[p] = c.Pairs[p].Plus(by)
}

func TestCountersOfServices(t *testing.T) {
	t.Parallel()
	c := had(map[int]counters.Values{1: {Connections: 300}, 99: {Connections: 8}})
	f := newFixture(t, "nftables", func(cfg *metrics.Config) { cfg.Counters = c })
	f.scrape() // nothing was applied
	f.apply(with(with(onNode(), 1, 1), 2, 1))
	const one = "{namespace=default,service=svc-1}"
	f.requireSeries(map[string]float64{"kernlb_service_connections_total" + one: 0})
	c.grow(clusterIP(1), "10.244.9.9:8080", counters.Values{Connections: 3, PacketsIn: 4,
		BytesIn: 5, PacketsOut: 6, BytesOut: 7})
	f.requireSeries(map[string]float64{
		"kernlb_service_connections_total" + one:                                      3,
		"kernlb_service_connections_total{namespace=default,service=svc-2}":           0,
		"kernlb_service_connections_total{namespace=default,service=svc-99}":          none,
		"kernlb_service_packets_total{direction=in,namespace=default,service=svc-1}":  4,
		"kernlb_service_bytes_total{direction=in,namespace=default,service=svc-1}":    5,
		"kernlb_service_packets_total{direction=out,namespace=default,service=svc-1}": 6,
		"kernlb_service_bytes_total{direction=out,namespace=default,service=svc-1}":   7,
	})
	c.err = counters.ErrOff
	f.requireSeries(map[string]float64{"kernlb_service_connections_total" + one: none,
		"kernlb_scrape_errors_total{figure=counters}": 1})
	f.conntrack.err = errBroken
	f.requireSeries(map[string]float64{"kernlb_scrape_errors_total{figure=counters}": 2})
}

// A removed object never makes a counter fall, and an object that comes back is not counted twice.
func TestCountersOfServicesNeverFall(t *testing.T) {
	t.Parallel()
	external := netip.MustParseAddr("192.0.2.7")
	withExternal := func(s *servicemodel.Service) { s.ExternalIPs = []netip.Addr{external} }
	without, both := with(onNode(), 1, 1), with(onNode(), 1, 1, withExternal)
	ten := counters.Values{Connections: 10}
	const a, b = "10.244.1.1:8080", "10.244.1.2:8080"
	c := had(nil)
	c.grow(external, a, counters.Values{Connections: 1_000_000})
	f := newFixture(t, "nftables", func(cfg *metrics.Config) { cfg.Counters = c })
	forget := func(dst netip.Addr, endpoint string) {
		c.Pairs = maps.Clone(c.Pairs)
		delete(c.Pairs, counters.Pair{Protocol: servicemodel.TCP,
			Dst: netip.AddrPortFrom(dst, 80), Endpoint: netip.MustParseAddrPort(endpoint)})
	}

	for _, step := range []struct {
		about string
		state servicemodel.State
		do    func()
		want  float64
	}{
		{"at first", both, func() {}, 0},
		{"connections", both, func() {
			c.grow(external, a, ten)
			c.grow(clusterIP(1), a, ten)
		}, 20},
		{"an address goes", without, func() {}, 20},
		{"it comes again", both, func() {}, 20},
		{"the kernel forgets an endpoint", both, func() { forget(external, a) }, 20},
		{"it is used again", both, func() { c.grow(external, a, ten) }, 30},
		{"another endpoint", both, func() { c.grow(external, b, ten) }, 40},
		{"IPVS loses an endpoint, and adds what it had to the rest", both, func() {
			forget(external, b)
			c.grow(external, "", counters.Values{Connections: 12})
		}, 42},
	} {
		f.apply(step.state)
		step.do()
		require.InDelta(t, step.want, f.scrape()["kernlb_service_connections_total{"+
			"namespace=default,service=svc-1}"], 0, step.about)
	}
}

// After a day without a new connection, the kernel forgets the number of connections, but still
// counts the packets of open connections.
func TestPacketsGrowWhenConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	c := had(map[int]counters.Values{1: {Connections: 5, PacketsIn: 1000, BytesIn: 50_000}})
	f := newFixture(t, "nftables", func(cfg *metrics.Config) { cfg.Counters = c })
	f.apply(with(onNode(), 1, 1))
	f.scrape()
	for i, connections := range []uint64{0, 1} { // forgotten, then a new connection
		c.Pairs = had(map[int]counters.Values{1: {Connections: connections,
			PacketsIn: 1010 + 10*uint64(i), BytesIn: 50_400 + 400*uint64(i)}}).Pairs
		const of = "namespace=default,service=svc-1}"
		f.requireSeries(map[string]float64{
			"kernlb_service_connections_total{" + of:          float64(connections),
			"kernlb_service_packets_total{direction=in," + of: 10 * float64(i+1),
			"kernlb_service_bytes_total{direction=in," + of:   400 * float64(i+1),
		})
	}
}
