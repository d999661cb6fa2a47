// Package neighbour is another program that commits to nf_tables without pause, in a table of its
// own: what kernlb lives beside on most nodes.
package neighbour

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Pause is the time between two commits: 50 in a second.
const Pause = 20 * time.Millisecond

// Neighbour is such a program. It does not mind if somebody flushes the ruleset.
type Neighbour struct {
	conn    *rawnl.Conn
	stop    context.CancelFunc
	ended   sync.WaitGroup
	commits int
	err     error
}

// Start starts a neighbour in the network namespace of a file descriptor, or in that of the calling
// thread for 0. It must be closed.
func Start(ctx context.Context, netns int) (*Neighbour, error) {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	n := &Neighbour{conn: conn}
	ctx, n.stop = context.WithCancel(ctx)
	n.ended.Go(func() { n.err = n.run(ctx) })
	return n, nil
}

// run adds a chain to the table and deletes it, again and again.
func (n *Neighbour) run(ctx context.Context) error {
	tick := time.NewTicker(Pause)
	defer tick.Stop()
	var batch rawnl.Batch
	e := nft.NewEncoder(&batch, nft.IPv4, "neighbour")
	for ; ; n.commits++ {
		batch.Reset()
		e.EnsureTable()
		e.AddChain(&nft.Chain{Name: "chain"})
		e.DeleteChain("chain")
		if err := n.conn.Commit(ctx, &batch, 0); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			batch.Reset()
			e.EnsureTable()
			e.DeleteTable()
			return n.conn.Commit(context.WithoutCancel(ctx), &batch, 0)
		case <-tick.C:
		}
	}
}

// Close ends the neighbour, removes its table, and returns how often it has committed.
func (n *Neighbour) Close() (commits int, err error) {
	n.stop()
	n.ended.Wait()
	if errors.Is(n.err, context.Canceled) {
		n.err = nil
	}
	return n.commits, errors.Join(n.err, n.conn.Close())
}
