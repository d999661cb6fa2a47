package ipvs_test

import (
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A check of manifests finds the services that IPVS would refuse. It needs no kernel.
func ExampleCheck() {
	service := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"}, Scheduler: sm.Random,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
	table, err := sm.Resolve(nil, sm.State{}.WithService(service))
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, p := range dataplane.Problems(ipvs.Check(sm.Diff(nil, table))) {
		fmt.Println(p.Service, p.Field == backends.FieldScheduler, p.Value)
	}
	// Output:
	// default/web true random
}
