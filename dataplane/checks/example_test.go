package checks_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// Endpoints get connections only while they answer. The program sets its state, and the follower
// gives the engine states in which silent endpoints are not ready.
func ExampleFollower() {
	kernel := &memory.Kernel{} // a program opens nftables, iptables or ipvs
	engine := dataplane.New(memory.New(kernel), nil)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()

	changed := make(chan checks.Report)
	var revision dataplane.Revision // most programs ignore it
	follower, err := checks.NewFollower(func(s servicemodel.State) { revision = engine.Set(s) },
		&checks.Config{Changed: func(r checks.Report) { changed <- r }})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go engine.Run(ctx, nil) //nolint:errcheck // both end with the context
	go follower.Run(ctx)    //nolint:errcheck

	name := servicemodel.Name{Namespace: "default", Name: "web"}
	wanted := servicemodel.State{}.
		WithService(&servicemodel.Service{Name: name,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}).
		WithEndpoints(name, []servicemodel.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1"),
			Ports: []servicemodel.EndpointPort{
				{Protocol: servicemodel.TCP, Port: 8080}}}})
	check := checks.Check{Type: checks.HTTP, Path: "/healthz", Status: "404",
		// The example has one server, at an address other than the endpoint's.
		Address: netip.MustParseAddr("127.0.0.1"), Port: port}
	if err := follower.Set(wanted, map[servicemodel.Name][]checks.Check{name: {check}},
		nil); err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println((<-changed).State)
	if err := engine.Wait(ctx, revision); err != nil {
		fmt.Println(err)
	}
	fmt.Println(kernel.Table().Decide(servicemodel.Packet{Protocol: servicemodel.TCP,
		Src: netip.MustParseAddrPort("10.0.0.9:40000"),
		Dst: netip.MustParseAddrPort("10.96.0.1:80")}, nil))
	// Output:
	// up
	// balanced over 10.0.0.1:8080: cluster-ip of default/web, from outside
}

// A monitor checks the targets of a program, here with a function instead of the network.
func ExampleMonitor() {
	broken := netip.MustParseAddrPort("10.0.0.2:8080")
	done := make(chan bool)
	monitor, err := checks.New(&checks.Config{
		Changed: func(r checks.Report) {
			fmt.Println(r.Target, "is", r.State)
			if r.Err != nil {
				fmt.Println(r.Err)
				close(done)
			}
		},
		Ask: func(_ context.Context, t checks.Target) error {
			if t.Addr() == broken {
				return fmt.Errorf("status %d", http.StatusServiceUnavailable)
			}
			return nil
		}})
	if err != nil {
		fmt.Println(err)
		return
	}

	check := checks.Check{Type: checks.HTTP, Path: "/healthz", Retry: time.Millisecond, Fall: 2}
	target := check.Target(broken)
	err = monitor.Set(map[checks.Target]checks.State{target: checks.Up}) // it was up before
	if err != nil {
		fmt.Println(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	go func() { <-done; stop() }()
	fmt.Println(monitor.Run(ctx))
	fmt.Println(monitor.Reports()[0].Failed, "failures")
	// Output:
	// http 10.0.0.2:8080/healthz is down
	// status 503
	// context canceled
	// 2 failures
}
