package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Switched switches an engine that runs from one backend to another and back, while connections are
// open and new ones are made: none of them may notice. Connections that a backend knows and
// conntrack does not ([Backend.OwnConnections]) may end with it. Nothing is left of the backend
// before.
func Switched(t *testing.T, from, to Backend) {
	from.need(t)
	to.need(t)
	netnstest.Require(t)
	w, err := newWorld(t.Context(), from, Options{})
	if err != nil {
		t.Fatalf("build the network: %v", err)
	}
	defer w.close()
	s := trafficState()
	w.apply(t, s)
	stop := RunEngine(t, w.engine, s)
	defer stop()
	for _, under := range []Backend{to, from} {
		begin := w.traffic
		if w.under.OwnConnections {
			begin = w.newTraffic
		}
		end := begin(t)
		time.Sleep(time.Second)
		w.switchTo(t, under)
		time.Sleep(time.Second)
		end()
	}
}

// trafficState has one service, with two endpoints.
func trafficState() servicemodel.State {
	return state(podCIDRs(thisNode()), web(), eps("pod2", "remote1"))
}

// trafficTargets are addresses of the service of trafficState, by the host that asks there.
func trafficTargets() map[string]netip.AddrPort {
	return map[string]netip.AddrPort{"pod1": netip.AddrPortFrom(clusterIP[0], servicePort),
		"outside1": netip.AddrPortFrom(lbIP[1], servicePort),
		"outside2": netip.AddrPortFrom(nodeIP[0], nodePort),
		"node":     netip.AddrPortFrom(clusterIP[1], servicePort)}
}

// traffic opens connections, uses them until end is called, and opens new ones all the while. end
// requires that none of them was disturbed.
func (w *world) traffic(t *testing.T) (end func()) {
	t.Helper()
	targets := trafficTargets()
	opened := make(chan netnstest.ConnsReport, len(targets))
	ctx, cancel := context.WithCancel(t.Context())
	for host, addr := range targets {
		conns, err := netnstest.OpenConns(t.Context(), w.hosts[host], addr, 25)
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		go func() {
			defer conns.Close()
			opened <- conns.Watch(ctx, 100*time.Millisecond, 5*time.Second)
		}()
	}
	endNew := w.newTraffic(t)
	return func() {
		endNew()
		cancel()
		for range targets {
			if r := <-opened; r.Lost() > 0 || r.Answered == 0 {
				t.Errorf("of 25 connections %d died: %d reset, %d closed, %d silent: %v", r.Lost(),
					r.Reset, r.Closed, r.Silent, r.Errors)
			}
		}
	}
}

// newTraffic has hosts open connections until end is called, which requires that all of them were
// answered.
func (w *world) newTraffic(t *testing.T) (end func()) {
	targets := trafficTargets()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan []string, len(targets))
	var total atomic.Int64
	for host, addr := range targets {
		go func() {
			n, bad := w.ask(ctx, host, addr)
			total.Add(int64(n))
			asked <- bad
		}()
	}
	return func() {
		cancel()
		var bad []string
		for range targets {
			bad = append(bad, <-asked...)
		}
		if len(bad) > 0 {
			t.Errorf("%d not answered, such as %s", len(bad), bad[0])
		}
		t.Logf("%d new connections and datagrams", total.Load())
	}
}

// ask opens connections and sends datagrams without a pause until ctx is done, and returns those
// that were not answered.
func (w *world) ask(ctx context.Context, host string, to netip.AddrPort) (asked int, bad []string) {
	for ctx.Err() == nil {
		probes := []netnstest.Probe{{From: w.hosts[host], Proto: netnstest.TCP, To: to},
			{From: w.hosts[host], Proto: netnstest.UDP, To: to}}
		for i, o := range netnstest.SendAll(context.WithoutCancel(ctx), probes) {
			if asked++; o.Kind != netnstest.Answered {
				bad = append(bad, fmt.Sprintf("%v: %v", probes[i], o))
			}
		}
	}
	return asked, bad
}

// switchTo switches the world's engine to another backend and requires that nothing is left of the
// one before.
func (w *world) switchTo(t *testing.T, under Backend) {
	t.Helper()
	b, err := under.Open(w.Node.NS.Fd())
	if err != nil {
		t.Fatal(err)
	}
	before := w.backend
	r, err := w.engine.Switch(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	w.under, w.backend = under, b
	o, err := before.Observe(t.Context(), nil)
	if err != nil || o.Table.Len() > 0 || len(o.Drift) > 0 {
		t.Errorf("left of %s: %v, %v, %v", before.Name(), o, err, r)
	}
	if err := before.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("switched from %s to %s in %v", before.Name(), b.Name(), r.Duration)
}
