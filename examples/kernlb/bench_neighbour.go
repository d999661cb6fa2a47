package main

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/servicemodel"
)

// besideNeighbour measures beside a neighbour that commits.
func (b *benchmark) besideNeighbour(ctx context.Context) {
	start := time.Now()
	waits := b.beside(ctx, 0, func() {
		b.report.BusyPaced = b.small(ctx, pacedRuns, b.replaceAtPace)
		b.report.BusyAdopt = b.large(ctx, adoptRuns, b.replaceEndpoint)
	})
	b.report.NeighbourCommits = float64(len(waits)) / time.Since(start).Seconds()
}

// holdingUp measures how long the commits of a neighbour take during full syncs, in the same
// network namespace and in another one.
func (b *benchmark) holdingUp(ctx context.Context) {
	if b.err != nil {
		return
	}
	ns, err := netnstest.NewNS("neighbour")
	if err != nil {
		b.err = err
		return
	}
	for _, l := range []struct {
		fd int
		to *timing
	}{{0, &b.report.Neighbour}, {ns.Fd(), &b.report.NeighbourElsewhere}} {
		var waits []time.Duration
		for i := 0; i < syncRuns && b.err == nil; i++ {
			_, b.err = b.engine.Cleanup(ctx)
			b.close() // waits until the kernel has freed the tables
			waits = append(waits, b.beside(ctx, l.fd, func() {
				b.report.BusySync = b.large(ctx, 1, func(int) servicemodel.State { return b.state })
			})...)
		}
		if b.err == nil {
			*l.to = newTiming(waits, 0)
		}
	}
	b.err = errors.Join(b.err, ns.Close())
}

// beside calls measure beside a neighbour in a network namespace, and returns how long each of the
// neighbour's commits took.
func (b *benchmark) beside(ctx context.Context, netns int, measure func()) []time.Duration {
	if b.err != nil {
		return nil
	}
	n, err := busywriter.Start(ctx, netns)
	if err != nil {
		b.err = err
		return nil
	}
	measure()
	waits, err := n.Close()
	b.err = errors.Join(b.err, err)
	return waits
}
