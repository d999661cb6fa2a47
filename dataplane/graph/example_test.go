package graph_test

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/graph"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A document on GitHub shows services as a flowchart.
func ExampleServices() {
	web := sm.Name{Namespace: "default", Name: "web"}
	table, err := sm.Resolve(nil, sm.State{}.WithService(&sm.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
	}).WithEndpoints(web, []sm.Endpoint{{Addr: netip.MustParseAddr("10.244.1.7"),
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}}))
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Print(graph.Services(table, nil).Mermaid())
	// Output:
	// flowchart LR
	//     n0["default/web"]:::plain
	//     n1["10.96.0.10:80/tcp<br>cluster-ip"]:::plain
	//     n2["all endpoints<br>IPv4"]:::plain
	//     n3["10.244.1.7:8080"]:::plain
	//   n0 --> n1
	//   n2 -->|"100 %"| n3
	//   n1 --> n2
	//   classDef refuses stroke:#b3201c,stroke-width:2px
	//   classDef foreign stroke-dasharray:4 3
	//   classDef aside stroke-opacity:0.4
	//   classDef plain stroke-width:1px
}
