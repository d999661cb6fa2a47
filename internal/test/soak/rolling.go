package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// rolling replaces endpoints of services at a rate, and measures how long each change takes until
// the kernel has it. Meanwhile, connections and datagrams to another service go on.
func rolling(ctx context.Context, o *options) error {
	r, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer r.close() //nolint:errcheck // the network goes with the process
	state := serviceState(o.services, o.affinity)
	if _, err := r.engine.Apply(ctx, state); err != nil {
		return err
	}
	conns, err := r.openConns(ctx, o.conns)
	if err != nil {
		return err
	}
	var l latencies
	defer r.engine.Subscribe(l.observe)()
	traffic, stop := context.WithCancel(ctx)
	defer stop()
	udp := r.newStream(traffic, 2*time.Millisecond)
	report := make(chan netnstest.ConnsReport, len(conns))
	for _, c := range conns {
		go func() { report <- c.Watch(traffic, 5*time.Second, 20*time.Second) }()
	}
	before := r.engine.Status().Totals.Applies
	start := time.Now()
	changes, last := r.replaceEndpoints(ctx, o, state, &l)
	if err := r.engine.Wait(ctx, last); err != nil {
		return err
	}
	took := time.Since(start)
	applies := r.engine.Status().Totals.Applies - before
	stop()
	sent, lost := udp.end()
	broken := sum(report, len(conns))
	fmt.Printf("%s: %d endpoints replaced in %.1f s, %.0f a second, in %d applies\n", o.backend,
		changes, took.Seconds(), float64(changes)/took.Seconds(), applies)
	fmt.Printf("from change to kernel: %s\n", l.String())
	fmt.Printf("%d open connections: %d pings answered, %d reset, %d closed, %d silent\n", o.conns,
		broken.Answered, broken.Reset, broken.Closed, broken.Silent)
	fmt.Printf("UDP: %d datagrams, %d lost\n", sent, lost)
	if t := r.engine.Status().Totals; t.Failures > 0 {
		return fmt.Errorf("%d applies failed: %w", t.Failures, r.engine.Status().Err)
	}
	if broken.Lost() > 0 || lost > 0 {
		return errors.New("a service that nobody changed was disturbed")
	}
	return nil
}

// sum adds up n reports.
func sum(reports <-chan netnstest.ConnsReport, n int) (all netnstest.ConnsReport) {
	for range n {
		r := <-reports
		all.Answered += r.Answered
		all.Reset, all.Closed = all.Reset+r.Reset, all.Closed+r.Closed
		all.Silent += r.Silent
	}
	return all
}

// openConns opens connections to the service that stays, from two clients outside and a pod.
func (r *rig) openConns(ctx context.Context, n int) (all []*netnstest.Conns, err error) {
	from := append(slices.Clone(r.Outside), r.Pods[0])
	for i, h := range from {
		share := n*(i+1)/len(from) - n*i/len(from)
		c, err := netnstest.OpenConns(ctx, h, netip.AddrPortFrom(still, 80), share)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// replaceEndpoints replaces one endpoint at a time, of one service after the other.
func (r *rig) replaceEndpoints(ctx context.Context, o *options, state servicemodel.State,
	l *latencies) (changes int, last dataplane.Revision) {
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
			last = l.set(r.engine, state)
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

// set asks for a state.
func (l *latencies) set(e *dataplane.Engine, s servicemodel.State) dataplane.Revision {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	rev := e.Set(s)
	l.asked = append(l.asked, asked{rev, now})
	return rev
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
	n := 0
	for n < len(l.asked) && l.asked[n].revision <= applied.Revision {
		l.took = append(l.took, now.Sub(l.asked[n].at))
		n++
	}
	l.asked = l.asked[n:]
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
