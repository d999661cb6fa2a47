package iptables_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/servicemodel"
)

// A program that balances one service, with chains of its own beside those of kube-proxy.
func Example() {
	backend, err := iptables.New(&iptables.Config{Prefix: "MYLB"})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()

	web := servicemodel.Name{Namespace: "default", Name: "web"}
	state := servicemodel.State{}.WithService(&servicemodel.Service{
		Name: web,
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
			Port: 80}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	}).WithEndpoints(web, []servicemodel.Endpoint{{
		Addr: netip.MustParseAddr("10.244.1.1"), Ready: true, Serving: true,
		Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP, Port: 8080}},
	}})

	result, err := dataplane.New(backend, nil).Apply(context.Background(), state)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Added, "frontends added with", result.Messages, "messages")
}
