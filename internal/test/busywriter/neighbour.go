// Package busywriter commits to nf_tables without end, in a table of its own, like other programs
// on most nodes.
package busywriter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Pause is the time between two commits: 50 in a second.
const Pause = 20 * time.Millisecond

// Writer is a program that commits without end. It continues if another program flushes the
// ruleset.
type Writer struct {
	conn  *rawnl.Conn
	stop  context.CancelFunc
	ended sync.WaitGroup
	waits []time.Duration
	err   error
}

// Start starts a writer in a network namespace. The caller must close it.
func Start(ctx context.Context, ns netns.Namespace) (*Writer, error) {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns})
	if err != nil {
		return nil, err
	}
	n := &Writer{conn: conn}
	ctx, n.stop = context.WithCancel(ctx)
	n.ended.Go(func() { n.err = n.run(ctx) })
	return n, nil
}

// run commits again and again.
func (n *Writer) run(ctx context.Context) error {
	tick := time.NewTicker(Pause)
	defer tick.Stop()
	for {
		start := time.Now()
		if err := touch(ctx, n.conn); err != nil {
			return err
		}
		n.waits = append(n.waits, time.Since(start))
		select {
		case <-ctx.Done():
			var batch rawnl.Batch
			e := nft.NewEncoder(&batch, nft.IPv4, table)
			e.EnsureTable()
			e.DeleteTable()
			return n.conn.Commit(context.WithoutCancel(ctx), &batch, 0)
		case <-tick.C:
		}
	}
}

const table = "neighbour"

// touch adds a chain to the table and deletes it.
func touch(ctx context.Context, conn *rawnl.Conn) error {
	var batch rawnl.Batch
	e := nft.NewEncoder(&batch, nft.IPv4, table)
	e.EnsureTable()
	e.AddChain(&nft.Chain{Name: "chain"})
	e.DeleteChain("chain")
	return conn.Commit(ctx, &batch, 0)
}

// Once commits once, like a program that runs for a moment.
func Once(ctx context.Context, ns netns.Namespace) error {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns})
	if err != nil {
		return err
	}
	return errors.Join(touch(ctx, conn), conn.Close())
}

// Close ends the neighbour, removes its table, and returns the durations of its commits.
func (n *Writer) Close() (waits []time.Duration, err error) {
	n.stop()
	n.ended.Wait()
	if errors.Is(n.err, context.Canceled) {
		n.err = nil
	}
	return n.waits, errors.Join(n.err, n.conn.Close())
}
