// With is the program after the import. It balances an address, with checks and flows, and ends.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, http.ListenAndServeTLS(os.Args[1], "cert.pem", "key.pem", nil))
	}
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	backend, err := nftables.New(nil)
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, nil)
	if err != nil {
		return err
	}
	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
	if _, err = checks.NewFollower(func(s servicemodel.State) { engine.Set(s) }, nil); err != nil {
		return err
	}

	name := servicemodel.Name{Namespace: "vip", Name: "api"}
	state := servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
		Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 6443}},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
	})
	var l []servicemodel.Endpoint
	for i := range byte(3) {
		l = append(l, servicemodel.Endpoint{Addr: netip.AddrFrom4([4]byte{192, 0, 2, i + 1}),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 6443}}})
	}
	_, err = engine.Apply(ctx, state.WithEndpoints(name, l))
	return err
}
