package counters_test

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/counters"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A program sums up a reading by the frontends and endpoints of its services.
func ExampleReading_Of() {
	dst := netip.MustParseAddrPort("10.96.0.10:80")
	kept := netip.MustParseAddrPort("10.244.1.7:8080")
	gone := netip.MustParseAddrPort("10.244.1.8:8080") // it has left the service
	web := sm.Name{Namespace: "default", Name: "web"}
	table, err := sm.Resolve(nil, sm.State{}.WithService(&sm.Service{Name: web,
		ClusterIPs: []netip.Addr{dst.Addr()},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
	}).WithEndpoints(web, []sm.Endpoint{{Addr: kept.Addr(),
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}}))
	if err != nil {
		fmt.Println(err)
		return
	}

	// Counters.Read returns such a reading.
	reading := &counters.Reading{Pairs: map[counters.Pair]counters.Values{
		{Protocol: sm.TCP, Dst: dst, Endpoint: kept}: {Connections: 3, BytesIn: 1800},
		{Protocol: sm.TCP, Dst: dst, Endpoint: gone}: {Connections: 1, BytesIn: 600},
	}}
	sums := reading.Of(table, nil)
	for f := range table.Frontends() {
		fmt.Println(f.Key, sums.Frontend(f.Key).Connections, "connections")
		fmt.Println(kept, sums.Endpoint(f.Key, kept).BytesIn, "bytes from clients")
	}
	// Output:
	// 10.96.0.10:80/tcp 4 connections
	// 10.244.1.7:8080 1800 bytes from clients
}
