package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// neighbourPause is the time between two commits of the neighbour: 50 in a second.
const neighbourPause = 20 * time.Millisecond

// neighbour is another program that commits to a table of its own, in this network namespace, all
// the time.
type neighbour struct {
	conn    *rawnl.Conn
	stop    context.CancelFunc
	ended   sync.WaitGroup
	commits int
	err     error
}

// newNeighbour starts a neighbour. It must be closed.
func newNeighbour(ctx context.Context) (*neighbour, error) {
	conn, err := rawnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	n := &neighbour{conn: conn}
	ctx, n.stop = context.WithCancel(ctx)
	n.ended.Go(func() { n.err = n.run(ctx) })
	return n, nil
}

// run adds a chain to the table, deletes it, and so on.
func (n *neighbour) run(ctx context.Context) error {
	tick := time.NewTicker(neighbourPause)
	defer tick.Stop()
	var batch rawnl.Batch
	e := nft.NewEncoder(&batch, nft.IPv4, "neighbour")
	e.AddTable()
	for ; ; n.commits++ {
		if err := n.conn.Commit(ctx, &batch, 0); err != nil {
			return err
		}
		batch.Reset()
		select {
		case <-ctx.Done():
			e.DeleteTable()
			return n.conn.Commit(context.WithoutCancel(ctx), &batch, 0)
		case <-tick.C:
		}
		if n.commits%2 == 0 {
			e.AddChain(&nft.Chain{Name: "chain"})
		} else {
			e.DeleteChain("chain")
		}
	}
}

// close ends the neighbour, removes its table, and returns how often it has committed.
func (n *neighbour) close() (commits int, err error) {
	n.stop()
	n.ended.Wait()
	if errors.Is(n.err, context.Canceled) {
		n.err = nil
	}
	return n.commits, errors.Join(n.err, n.conn.Close())
}
