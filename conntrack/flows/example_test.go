package flows_test

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A program gives its engine a keeper. Connections to endpoints that go have half a minute; what is left then is reset.
func Example() {
	ctx := context.Background()
	run := func(backend dataplane.Backend, states <-chan sm.State) error {
		table, err := conntrack.Open(conntrack.Config{})
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
		return engine.Run(ctx, states, nil) // deletes, drains and cuts when it is time
	}
	_ = run
}
