package nodeaddrs_test

import (
	"context"
	"log"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
	"github.com/kernlb/kernlb/servicemodel"
)

// The engine finds out the addresses of the node itself.
func Example() {
	addrs, err := nodeaddrs.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer addrs.Close()
	engine := dataplane.New(memory.New(nil), &dataplane.Config{Node: addrs})
	engine.Set(servicemodel.State{}.WithNode(servicemodel.Node{Name: "node-1"}))
	ctx, stop := context.WithCancel(context.Background())
	stop()
	_ = engine.Run(ctx, nil) // until ctx ends
}
