package metrics_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/servicemodel"
)

// fakeCounters have counted something, or fail.
type fakeCounters struct {
	counters.Reading
	err error
}

func (c *fakeCounters) Read(context.Context) (*counters.Reading, error) { return &c.Reading, c.err }

// had are counters of services by their numbers.
func had(values map[int]counters.Values) *fakeCounters {
	c := &fakeCounters{Reading: counters.Reading{Pairs: map[counters.Pair]counters.Values{}}}
	for i, v := range values {
		c.Pairs[counters.Pair{Protocol: servicemodel.TCP, Dst: netip.AddrPortFrom(clusterIP(i), 80),
			Endpoint: netip.MustParseAddrPort("10.244.9.9:8080")}] = v
	}
	return c
}

func TestCountersOfServices(t *testing.T) {
	t.Parallel()
	c := had(map[int]counters.Values{1: {Connections: 3, PacketsIn: 4, BytesIn: 5, PacketsOut: 6,
		BytesOut: 7}, 99: {Connections: 8}})
	f := newFixture(t, "nftables", func(cfg *metrics.Config) { cfg.Counters = c })
	f.scrape() // nothing was applied
	f.apply(with(with(onNode(), 1, 1), 2, 1))
	const one = "{namespace=default,service=svc-1}"
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
