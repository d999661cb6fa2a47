package servicemodel_test

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// shop is a service with a cluster IP and two endpoints.
func shop() servicemodel.State {
	name := servicemodel.Name{Namespace: "default", Name: "shop"}
	http := []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}}
	return servicemodel.State{}.
		WithService(&servicemodel.Service{
			Name:       name,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 80, NodePort: 30080}},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{
			{Addr: netip.MustParseAddr("10.64.1.5"), Ports: http, Node: "n1"},
			{Addr: netip.MustParseAddr("10.64.2.6"), Ports: http, Node: "n2"},
		})
}

// A state is resolved to a table, and tables are compared.
func Example() {
	state := shop()
	table, err := servicemodel.Resolve(nil, state)
	if err != nil {
		fmt.Println(err)
		return
	}

	for f := range table.Frontends() {
		fmt.Println(f)
	}

	// One endpoint is replaced: one slot of one pool changes.
	name := servicemodel.Name{Namespace: "default", Name: "shop"}
	endpoints := append([]servicemodel.Endpoint(nil), state.Endpoints(name)...)
	endpoints[1].Addr = netip.MustParseAddr("10.64.3.7")
	next, err := servicemodel.Resolve(table, state.WithEndpoints(name, endpoints))
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Print(servicemodel.Diff(table, next))
	// Output:
	// *4:30080/tcp default/shop:http node-port -> cluster; masquerade all
	// 10.96.0.10:80/tcp default/shop:http cluster-ip -> cluster
	// ~ pool default/shop:http/tcp IPv4 cluster: slot 1: 10.64.2.6:8080 -> 10.64.3.7:8080
}

//revive:disable:line-length-limit a line of output cannot be wrapped
func ExampleTable_Decide() {
	table, err := servicemodel.Resolve(nil, shop().WithNode(servicemodel.Node{
		Name: "n1",
		LocalPods: servicemodel.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16")}},
	}))
	if err != nil {
		fmt.Println(err)
		return
	}

	here := servicemodel.Locality{netip.MustParseAddr("192.0.2.1")}
	for _, p := range []servicemodel.Packet{
		{Src: netip.MustParseAddrPort("10.64.1.5:40000"),
			Dst: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: servicemodel.TCP},
		{Src: netip.MustParseAddrPort("198.51.100.7:40000"),
			Dst: netip.MustParseAddrPort("192.0.2.1:30080"), Protocol: servicemodel.TCP},
		{Src: netip.MustParseAddrPort("10.64.1.5:40000"),
			Dst: netip.MustParseAddrPort("10.96.0.10:81"), Protocol: servicemodel.TCP},
	} {
		fmt.Println(table.Decide(p, here))
	}
	// Output:
	// balanced over 10.64.1.5:8080 masqueraded, 10.64.2.6:8080: cluster-ip of default/shop:http, from pods
	// balanced over 10.64.1.5:8080 masqueraded, 10.64.2.6:8080 masqueraded: node-port of default/shop:http, from outside
	// rejected: 10.96.0.10 is default/shop, which has port 80/tcp, not 81/tcp
}

// The reason why a service refuses connections, in words and as a value.
func ExampleTable_Cause() {
	name := servicemodel.Name{Namespace: "default", Name: "shop"}
	state := shop()
	endpoints := state.Endpoints(name)
	for i := range endpoints {
		endpoints[i].Condition = servicemodel.NotReady
	}
	table, err := servicemodel.Resolve(nil, state.WithEndpoints(name, endpoints))
	if err != nil {
		fmt.Println(err)
		return
	}

	for f := range table.Frontends() {
		cause := table.Cause(f)
		fmt.Println(f.Key, f.Internal, cause.Kind, "-", cause)
	}
	// Output:
	// *4:30080/tcp reject not-ready - 2 endpoints, none ready
	// 10.96.0.10:80/tcp reject not-ready - 2 endpoints, none ready
}

// The fate of a packet, and the reason.
func ExampleTable_Trace() {
	table, err := servicemodel.Resolve(nil, shop())
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Print(table.Trace(servicemodel.Packet{Src: netip.MustParseAddrPort("10.64.9.9:40000"),
		Dst: netip.MustParseAddrPort("10.96.0.10:8080"), Protocol: servicemodel.TCP}, nil))
	// Output:
	// 10.64.9.9 -> 10.96.0.10:8080/tcp
	//   source       10.64.9.9 counts as outside: the node names no network of pods (Node.LocalPods)
	//   destination  10.96.0.10 is default/shop, which has port 80/tcp, not 8080/tcp
	//   outcome      rejected: 10.96.0.10 is default/shop, which has port 80/tcp, not 8080/tcp
}

//revive:enable:line-length-limit

func ExampleState_Validate() {
	bad := servicemodel.State{}.WithService(&servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "default", Name: "shop"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP}},
	})
	fmt.Println(bad.Validate())
	// Output:
	// service default/shop: ports[0].port: 0: must not be zero
	// service default/shop: clusterIPs[0]: 127.0.0.1: must not be a loopback address
}

func ExampleTable_Conflicts() {
	intruder := &servicemodel.Service{
		Name:        servicemodel.Name{Namespace: "default", Name: "intruder"},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
	}
	table, err := servicemodel.Resolve(nil, shop().WithService(intruder))
	if err != nil {
		fmt.Println(err)
		return
	}

	for c := range table.Conflicts() {
		fmt.Println(c)
	}
	// Output:
	// 10.96.0.10:80/tcp: default/shop:http wins over default/intruder
}
