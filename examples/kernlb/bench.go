package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// benchRuns is how often each single change is measured.
const benchRuns = 101

// report is what bench prints. Times are medians through the public API, from changed state to committed kernel; messages are those of one such change.
type report struct {
	Backend   string `json:"backend"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`

	FullSyncMs       float64 `json:"full_sync_ms"`
	FullSyncMessages int     `json:"full_sync_messages"`
	FullSyncBytes    int     `json:"full_sync_bytes"`

	NoopUs       float64 `json:"noop_us"`
	NoopMessages int     `json:"noop_messages"`

	OneEndpointUs       float64 `json:"one_endpoint_us"`
	OneEndpointMessages int     `json:"one_endpoint_messages"`

	ScaleUs       float64 `json:"scale_us"`
	ScaleMessages int     `json:"scale_messages"`

	OneServiceUs       float64 `json:"one_service_us"`
	OneServiceMessages int     `json:"one_service_messages"`

	AdoptMs       float64 `json:"adopt_ms"`
	AdoptMessages int     `json:"adopt_messages"`

	PeakHeapMB float64 `json:"peak_heap_mb"`

	Flows *flowReport `json:"flows,omitempty"` // with -flows
}

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
	heap := watchHeap()
	defer heap.stop()
	b := &benchmark{p: p, heap: heap, report: report{Services: p.opts.services, Endpoints: p.opts.endpoint}}
	if err := ns.Do(func() error { return b.run(ctx) }); err != nil {
		return err
	}
	b.report.PeakHeapMB = float64(heap.peak.Load()) / (1 << 20)
	return errors.Join(p.printReport(&b.report), p.printFlows(b.report.Flows))
}

// benchmark is one run of bench.
type benchmark struct {
	p      *program
	heap   *heapWatch
	engine *dataplane.Engine
	state  servicemodel.State
	report report
	err    error
}

func (b *benchmark) run(ctx context.Context) error {
	b.state = benchState(b.p.opts.node, b.p.opts.services, b.p.opts.endpoint)
	backend, err := b.p.openBackend(ctx, b.state)
	if err != nil {
		return err
	}
	defer backend.Close()
	b.report.Backend = backend.Name()
	b.engine = dataplane.New(backend, nil)
	runtime.GC()

	full, r := b.apply(ctx, b.state)
	b.report.FullSyncMs = ms(full)
	if r != nil {
		b.report.FullSyncMessages, b.report.FullSyncBytes = r.Messages, r.Bytes
	}
	b.report.NoopUs, b.report.NoopMessages = b.median(ctx, func(int) servicemodel.State { return b.state })
	b.report.OneEndpointUs, b.report.OneEndpointMessages = b.median(ctx, b.replaceEndpoint)
	b.report.ScaleUs, b.report.ScaleMessages = b.median(ctx, b.scale)
	b.report.OneServiceUs, b.report.OneServiceMessages = b.median(ctx, b.oneService)
	b.adopt(ctx)
	if _, err := b.engine.Cleanup(ctx); err != nil && b.err == nil {
		b.err = err
	}
	if b.err == nil && b.p.opts.flow.bench > 0 {
		b.report.Flows, b.err = b.benchFlows(ctx)
	}
	return b.err
}

// apply applies a state and returns how long that took.
func (b *benchmark) apply(ctx context.Context, s servicemodel.State) (time.Duration, *dataplane.Result) {
	if b.err != nil {
		return 0, nil
	}
	start := time.Now()
	r, err := b.engine.Apply(ctx, s)
	took := time.Since(start)
	b.err = err
	return took, r
}

// median applies the states that next makes, and returns the median time in microseconds and the greatest number of messages.
func (b *benchmark) median(ctx context.Context, next func(i int) servicemodel.State) (float64, int) {
	var times []time.Duration
	messages := 0
	for i := range benchRuns {
		s := next(i)
		took, r := b.apply(ctx, s)
		if r == nil {
			return 0, 0
		}
		b.state = s
		times = append(times, took)
		messages = max(messages, r.Messages)
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1000, messages
}

// replaceEndpoint replaces one endpoint of one service after the other.
func (b *benchmark) replaceEndpoint(i int) servicemodel.State {
	n := benchName(i * 7 % b.p.opts.services)
	eps := slices.Clone(b.state.Endpoints(n))
	eps[i%len(eps)].Addr = benchFreshAddr(i)
	return b.state.WithEndpoints(n, eps)
}

// scale gives a service one endpoint more, and takes it away again.
func (b *benchmark) scale(i int) servicemodel.State {
	n := benchName(i / 2 * 7 % b.p.opts.services)
	eps := slices.Clone(b.state.Endpoints(n))
	if i%2 == 1 {
		return b.state.WithEndpoints(n, eps[:len(eps)-1])
	}
	more := eps[0]
	more.Addr = benchFreshAddr(benchRuns + i)
	return b.state.WithEndpoints(n, append(eps, more))
}

// oneService adds a service, and removes it again.
func (b *benchmark) oneService(i int) servicemodel.State {
	n := b.p.opts.services
	if i%2 == 1 {
		return b.state.WithoutService(benchName(n)).WithEndpoints(benchName(n), nil)
	}
	return withBenchService(b.state, n, b.p.opts.endpoint)
}

// adopt lets a new instance find the same state in the kernel.
func (b *benchmark) adopt(ctx context.Context) {
	if b.err != nil {
		return
	}
	backend, err := b.p.openBackend(ctx, b.state)
	if err != nil {
		b.err = err
		return
	}
	defer backend.Close()
	old := b.engine
	b.engine = dataplane.New(backend, nil)
	took, r := b.apply(ctx, b.state)
	b.engine = old
	if r != nil {
		b.report.AdoptMs, b.report.AdoptMessages = ms(took), r.Messages
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (p *program) printReport(r *report) error {
	if p.opts.output == "json" {
		return p.printJSON(r)
	}
	_, err := fmt.Fprintf(p.stdout, `%s, %d services of %d endpoints
full sync            %10.1f ms  %5d messages, %d bytes
nothing changed      %10.1f µs  %5d messages
one endpoint replaced%10.1f µs  %5d messages
one more, one less   %10.1f µs  %5d messages
a service more, less %10.1f µs  %5d messages
adopt                %10.1f ms  %5d messages
peak heap            %10.1f MB
`, r.Backend, r.Services, r.Endpoints, r.FullSyncMs, r.FullSyncMessages, r.FullSyncBytes, r.NoopUs, r.NoopMessages, r.OneEndpointUs, r.OneEndpointMessages,
		r.ScaleUs, r.ScaleMessages, r.OneServiceUs, r.OneServiceMessages, r.AdoptMs, r.AdoptMessages, r.PeakHeapMB)
	return err
}

// heapWatch samples the size of the heap.
type heapWatch struct {
	peak atomic.Uint64
	quit chan struct{}
	done chan struct{}
}

func watchHeap() *heapWatch {
	h := &heapWatch{quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for {
			h.sample()
			select {
			case <-h.quit:
				return
			case <-t.C:
			}
		}
	}()
	return h
}
