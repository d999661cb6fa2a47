package flows_test

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A program gives its engine a keeper. Connections to removed endpoints may continue for half a
// minute, and are then reset.
func Example() {
	ctx := context.Background()
	run := func(backend backends.Backend, state sm.State) error {
		table, err := conntrack.Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		keeper, err := flows.New(table, &flows.Config{
			Connections: sm.ConnectionPolicy{Mode: sm.DrainConnections, Drain: 30 * time.Second},
		})
		if err != nil {
			return err
		}
		engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
		engine.Set(state)
		return engine.Run(ctx, nil) // deletes, drains and cuts in time
	}

	_ = run
}
