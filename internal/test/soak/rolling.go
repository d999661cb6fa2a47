package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane"
)

// rolling replaces endpoints of services at a rate, and measures how long each change takes until
// the kernel has it. Meanwhile, connections and datagrams to another service go on.
func rolling(ctx context.Context, o *options) error {
	r, err := newRig(ctx, o, o.conns)
	if err != nil {
		return err
	}
	defer r.close() //nolint:errcheck // the network goes with the process
	var l latencies
	defer r.engine.Subscribe(l.observe)()
	traffic, stop := context.WithCancel(ctx)
	defer stop()
	udp, watched := r.stream(traffic, 2*time.Millisecond), r.watch(traffic, 5*time.Second)
	before := r.engine.Status().Totals.Applies
	start := time.Now()
	changes, last := r.replaceEndpoints(ctx, o, &l)
	if err := r.engine.Wait(ctx, last); err != nil {
		return err
	}
	took := time.Since(start)
	applies := r.engine.Status().Totals.Applies - before
	stop()
	udp.work.Wait()
	broken := watched()
	fmt.Printf("%s: %d endpoints replaced in %.1f s, %.0f a second, in %d applies\n", o.backend,
		changes, took.Seconds(), float64(changes)/took.Seconds(), applies)
	fmt.Printf("from change to kernel: %s\n", l.String())
	fmt.Printf("%d open connections: %d pings answered, %d reset, %d closed, %d silent\n", o.conns,
		broken.Answered, broken.Reset, broken.Closed, broken.Silent)
	fmt.Printf("UDP: %d datagrams, %d lost\n", udp.sent, udp.lost)
	if t := r.engine.Status().Totals; t.Failures > 0 {
		return fmt.Errorf("%d applies failed: %w", t.Failures, r.engine.Status().Err)
	}
	if broken.Lost() > 0 || udp.lost > 0 {
		return errors.New("a service that nobody changed was disturbed")
	}
	return nil
}

// replaceEndpoints replaces one endpoint at a time, of one service after the other.
func (r *rig) replaceEndpoints(ctx context.Context, o *options, l *latencies) (changes int,
	last dataplane.Revision) {
	state := r.base
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	for ctx.Err() == nil && time.Since(start) < o.duration {
		<-tick.C
		for due := int(time.Since(start).Seconds() * float64(o.rate)); changes < due; changes++ {
			name := rollingName(changes % o.services)
			eps := slices.Clone(state.Endpoints(name))
			eps[changes/o.services%len(eps)] = rollingEndpoint(1<<20 + changes)
			state = state.WithEndpoints(name, eps)
			l.mu.Lock()
			now := time.Now()
			last = r.engine.Set(state)
			l.asked = append(l.asked, asked{last, now})
			l.mu.Unlock()
		}
	}
	return changes, last
}

// latencies are the times from a change until the kernel has it.
type latencies struct {
	mu    sync.Mutex
	asked []asked
	took  []time.Duration
}

// asked is a change that has not reached the kernel yet.
type asked struct {
	revision dataplane.Revision
	at       time.Time
}

// observe notes which changes have reached the kernel.
func (l *latencies) observe(_ context.Context, ev dataplane.Event) {
	applied, ok := ev.(dataplane.Applied)
	if !ok {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; len(l.asked) > 0 && l.asked[0].revision <= applied.Revision; l.asked = l.asked[1:] {
		l.took = append(l.took, now.Sub(l.asked[0].at))
	}
}

// String returns percentiles.
func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	if len(l.took) == 0 {
		return "nothing was applied"
	}
	at := func(p float64) time.Duration {
		return l.took[int(p*float64(len(l.took)-1))].Round(time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, max %v, of %d changes", at(.5), at(.99), at(1), len(l.took))
}
