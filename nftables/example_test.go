package nftables_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A test without a kernel, or a check of manifests, finds out what nftables would refuse.
func ExampleCheck() {
	name := sm.Name{Namespace: "default", Name: "web"}
	state := sm.State{}.WithService(&sm.Service{Name: name, Scheduler: sm.ShortestDelay,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}})

	backend := memory.New(nil)
	backend.Refuse(nftables.Check)
	result, err := dataplane.New(backend, nil).Apply(context.Background(), state)
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, r := range result.Refused {
		for _, p := range dataplane.Problems(r.Err) {
			fmt.Println(p.Service, p.Field == backends.FieldScheduler, p.Value)
		}
	}
	// Output:
	// default/web true sed
}
