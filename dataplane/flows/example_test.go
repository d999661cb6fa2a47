package flows_test

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/mirror"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A program gives its engine a keeper. Connections to endpoints that leave have half a minute.
// Those that are left then are reset.
func Example() {
	ctx := context.Background()
	run := func(backend dataplane.Backend, state sm.State) error {
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

// Where there are many flows, a mirror finds the stale ones. Without it, or if it fails, the keeper
// works all the same.
func Example_mirror() {
	run := func(ctx context.Context, table *conntrack.Table, backend dataplane.Backend,
		state sm.State) error {
		index, err := mirror.New(table, nil)
		if err != nil {
			return err
		}
		keeper, err := flows.New(table, &flows.Config{
			Clean: conntrack.CleanOptions{Index: index},
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- index.Run(ctx) }()
		engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
		engine.Set(state)
		err = engine.Run(ctx, nil)
		cancel()
		return errors.Join(err, <-done)
	}
	_ = run
}
