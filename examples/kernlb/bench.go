package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/servicemodel"
)

// Numbers of measurements: of each single change, of changes beside the paced neighbour, and of
// adoptions.
const (
	benchRuns = 101
	pacedRuns = 301
	adoptRuns = 3
	syncRuns  = 3 // full syncs beside neighbours
)

// bench measures the library in a namespace of its own.
func (p *program) bench(ctx context.Context) error {
	if done, code, err := netnstest.ReExecInUserNS(); done {
		if code != 0 {
			return fmt.Errorf("the copy in a user namespace exited with code %d", code)
		}
		return nil
	} else if err != nil {
		return err
	}
	ns, err := netnstest.NewNS("bench")
	if err != nil {
		return err
	}
	defer ns.Close()
	b := &benchmark{p: p, report: report{Services: p.opts.services, Endpoints: p.opts.endpoint}}
	if err := ns.Do(func() error { return b.run(ctx) }); err != nil {
		return err
	}
	return errors.Join(p.printReport(&b.report), p.printFlows(b.report.Flows))
}

// benchmark is one run of bench.
type benchmark struct {
	p       *program
	backend dataplane.Backend
	engine  *dataplane.Engine
	state   servicemodel.State
	changes int // endpoints replaced so far
	report  report
	err     error
}

func (b *benchmark) run(ctx context.Context) error {
	b.state = benchState(b.p.opts.node, b.p.opts.services, b.p.opts.endpoint)
	defer func() { b.close() }()
	b.report.FullSync = b.large(ctx, 1, func(int) servicemodel.State { return b.state })
	b.report.Noop = b.small(ctx, benchRuns, func(int) servicemodel.State { return b.state })
	b.report.OneEndpoint = b.small(ctx, benchRuns, b.replaceEndpoint)
	b.kernelShare(ctx)
	b.report.Scale = b.small(ctx, benchRuns, b.scale)
	b.report.OneService = b.small(ctx, benchRuns, b.oneService)
	b.report.Paced = b.small(ctx, pacedRuns, b.replaceAtPace)
	b.report.Adopt = b.large(ctx, adoptRuns, b.replaceEndpoint)
	b.besideNeighbour(ctx)
	b.holdingUp(ctx)
	if b.err == nil {
		_, b.err = b.engine.Cleanup(ctx)
	}
	if b.err == nil && b.p.opts.flow.bench > 0 {
		b.report.Flows, b.err = b.benchFlows(ctx)
	}
	return b.err
}

// open makes a new engine on a new backend, like a new process.
func (b *benchmark) open(ctx context.Context) {
	b.close()
	if b.err != nil {
		return
	}
	if b.backend, b.err = b.p.openBackend(ctx, b.state); b.err != nil {
		return
	}
	b.report.Backend = b.backend.Name()
	b.engine = dataplane.New(b.backend, b.p.engineConfig())
}

// close ends the engine, and drops its knowledge.
func (b *benchmark) close() {
	if b.backend != nil {
		b.err = errors.Join(b.err, b.backend.Close())
	}
	b.backend, b.engine = nil, nil
}

// apply applies a state and returns the time.
func (b *benchmark) apply(ctx context.Context, s servicemodel.State) (time.Duration,
	*dataplane.Result) {
	if b.err != nil {
		return 0, nil
	}
	start := time.Now()
	r, err := b.engine.Apply(ctx, s)
	took := time.Since(start)
	b.err = err
	return took, r
}

// small measures the changes to the states of next, one after the other.
func (b *benchmark) small(
	ctx context.Context, runs int, next func(i int) servicemodel.State,
) timing {
	var times []time.Duration
	messages := 0
	for i := range runs {
		s := next(i)
		took, r := b.apply(ctx, s)
		if r == nil {
			return timing{}
		}
		b.state = s
		times = append(times, took)
		messages = max(messages, r.Messages)
	}
	return newTiming(times, messages)
}

// large measures the changes to the states of next, each with a new engine.
func (b *benchmark) large(
	ctx context.Context, runs int, next func(i int) servicemodel.State,
) (l large) {
	var times []time.Duration
	for i := range runs {
		b.close()
		s := next(i)
		peak := peakHeap(func() {
			start := time.Now()
			b.open(ctx)
			_, r := b.apply(ctx, s)
			times = append(times, time.Since(start))
			if r != nil {
				l.Messages, l.Bytes = r.Messages, r.Bytes
			}
		})
		b.state = s
		l.PeakHeapMB = max(l.PeakHeapMB, peak)
	}
	slices.Sort(times)
	l.Ms = ms(times[len(times)/2])
	return l
}

// replaceEndpoint replaces one endpoint of one service after the other.
func (b *benchmark) replaceEndpoint(int) servicemodel.State {
	b.changes++
	i := b.changes
	n := benchName(i * 7 % b.p.opts.services)
	eps := b.state.Endpoints(n)
	eps[i%len(eps)].Addr = benchFreshAddr(i)
	return b.state.WithEndpoints(n, eps)
}

// replaceAtPace is replaceEndpoint after a pause in which the neighbour commits. The neighbour may
// commit again meanwhile.
func (b *benchmark) replaceAtPace(i int) servicemodel.State {
	time.Sleep(busywriter.Pause + time.Duration(i%10)*time.Millisecond)
	return b.replaceEndpoint(i)
}

// scale adds an endpoint to a service, and removes it again.
func (b *benchmark) scale(i int) servicemodel.State {
	n := benchName(i / 2 * 7 % b.p.opts.services)
	eps := b.state.Endpoints(n)
	if i%2 == 1 {
		return b.state.WithEndpoints(n, eps[:len(eps)-1])
	}
	more := eps[0]
	more.Addr = benchFreshAddr(1<<16 + i)
	return b.state.WithEndpoints(n, append(eps, more))
}

// oneService adds a service, and removes it again.
func (b *benchmark) oneService(i int) servicemodel.State {
	n := b.p.opts.services
	if i%2 == 1 {
		return b.state.WithoutService(benchName(n))
	}
	return withBenchService(b.state, n, b.p.opts.endpoint)
}
