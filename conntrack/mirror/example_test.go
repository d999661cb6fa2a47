package mirror_test

import (
	"context"
	"log"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/mirror"
)

// A long-running program cleans up without passes over the table.
func Example() {
	clean := func(ctx context.Context, table *conntrack.Table,
		changes <-chan conntrack.Change) error {
		index, err := mirror.New(table, nil)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- index.Run(ctx) }()
		for change := range changes {
			m, err := conntrack.NewMatcher(change)
			if err != nil {
				log.Print(err)
				continue
			}
			result, err := table.Clean(ctx, m, conntrack.CleanOptions{Index: index})
			if err != nil {
				log.Print(err)
			}
			log.Printf("%d flows deleted in %v", result.Deleted, result.Duration)
		}
		cancel()
		return <-done
	}
	_ = clean
}
