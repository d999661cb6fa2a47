package dataplanetest

import (
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/servicemodel"
)

// givenSources are addresses that services give for masqueraded connections: addresses that no host
// has, and the service's own.
var givenSources = []netip.Addr{netip.MustParseAddr("192.0.2.99"), netip.IPv4Unspecified(),
	netip.MustParseAddr("2001:db8:2::99"), netip.IPv6Unspecified()}

// ranges and toPort are targets of services with ranges of ports. All ports of toPort go to one
// port.
var ranges, toPort = target{pair("10.96.0.30", "fd00:10:96::30"), servicePort},
	target{pair("10.96.0.31", "fd00:10:96::31"), servicePort}

// givesSource asks a service that gives the source of its masqueraded connections, at all kinds of
// addresses, at exact ports and at a range. The source is added, changed and removed. Another
// service gives no source.
func givesSource(t *testing.T, w *world) {
	given := func(ips ...netip.Addr) func(*servicemodel.Service) {
		return func(s *servicemodel.Service) { s.MasqueradeIPs = ips }
	}
	with := func(given func(*servicemodel.Service)) servicemodel.State {
		s := and(state(podCIDRs(thisNode()), web(given), eps("pod2", "pod3")),
			web(named("other", clusterIP2)), eps("pod2"))
		if !w.under.Ranges {
			return s
		}
		s = and(s, web(named("to-port", toPort.addrs), portRange, given), eps("pod3"))
		return and(s, web(named("ranges", ranges.addrs), portRange, given),
			each(eps("pod3"), keptPorts))
	}

	if !w.accepted(t, with(given(givenSources[0])), backends.FieldMasqueradeIPs, "") {
		return
	}
	for _, ips := range [][]netip.Addr{{givenSources[0], givenSources[2]}, {givenSources[2]},
		{givenSources[1], givenSources[3]}, {givenSources[1], givenSources[2]}, nil} {
		table := w.apply(t, with(given(ips...))).Changes.New
		seen := 0
		for _, y := range w.ways([]string{"pod1", "pod2", "outside1", "node"}, everywhere...) {
			seen += w.requireOracle(t, table, y)
		}
		beside := []target{ranges.on(scenario.PortA), toPort.on(scenario.PortB), cluster2}
		for _, y := range w.ways([]string{"outside1", "node"}, beside...) {
			seen += w.requireOracle(t, table, y)
		}
		if (seen == 0) != (ips == nil) {
			t.Errorf("%d servers saw one of %v", seen, ips)
		}
	}
}

// requireOracle sends a packet, and judges it by the oracle. It returns 1 if the server saw the
// address that the service gives.
func (w *world) requireOracle(t *testing.T, table *servicemodel.Table, y way) int {
	t.Helper()
	p := w.probe(y)
	got := p.Send(t.Context())
	if complaint := w.judgeOracle(table, p, got); complaint != "" {
		t.Error(complaint)
	}
	want, _ := w.oracle(table, p, got.Local)
	if want.Source.IsValid() && got.Source.Addr() == want.Source {
		return 1
	}
	return 0
}
