package memory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A test makes the kernel fail, restarts its program, and asks about the fate of a packet.
func Example() {
	ctx, kernel := context.Background(), &memory.Kernel{}
	web := sm.Name{Namespace: "default", Name: "web"}
	state := sm.State{}.WithService(&sm.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}})

	backend := memory.New(kernel)
	backend.Fail(memory.CallCommit, 1, errors.New("no buffer space available"))
	_, err := dataplane.New(backend, nil).Apply(ctx, state)
	fmt.Println(err)

	// The second process finds the kernel as the first process left it.
	_, err = dataplane.New(memory.New(kernel), nil).Apply(ctx, state)
	fmt.Println(err)
	fmt.Println(kernel.Table().Decide(sm.Packet{Protocol: sm.TCP,
		Src: netip.MustParseAddrPort("10.244.1.7:40000"),
		Dst: netip.MustParseAddrPort("10.96.0.10:80")}, nil))
	// Output:
	// memory: commit: no buffer space available
	// <nil>
	// rejected: cluster-ip of default/web, from outside, no endpoint can be used
}
