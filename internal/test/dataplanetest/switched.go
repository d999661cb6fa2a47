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

// Switched switches a running engine from one backend to another and back, while connections are
// open and new connections begin: none of them may be disturbed. Connections that only a backend
// knows ([Backend.OwnConnections]) may end with the backend. Nothing may be left of the previous
// backend.
func Switched(t *testing.T, from, to Backend) {
	to.need(t)
	w := from.network(t)
	s := trafficState()
	w.apply(t, s)
	stop := RunEngine(t, w.engine, s)
	defer stop()
	for _, under := range []Backend{to, from} {
		begin := w.traffic
		if w.under.OwnConnections {
			// The new backend may drop a packet that is between its chains while they are created.
			begin = func(t *testing.T) func() { return w.newTraffic(t, 2) }
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

// trafficTargets are addresses of the service of trafficState, by the host that uses them.
func trafficTargets() map[string]netip.AddrPort {
	return map[string]netip.AddrPort{"pod1": netip.AddrPortFrom(clusterIP[0], servicePort),
		"outside1": netip.AddrPortFrom(lbIP[1], servicePort),
		"outside2": netip.AddrPortFrom(nodeIP[0], nodePort),
		"node":     netip.AddrPortFrom(clusterIP[1], servicePort)}
}

// traffic opens connections and uses them until end is called. During that time it opens new
// connections, too. end requires that no connection was disturbed.
func (w *world) traffic(t *testing.T) (end func()) {
	t.Helper()
	endOld, endNew := w.held(t, 25), w.newTraffic(t, 0)
	return func() {
		endNew()
		endOld()
	}
}

// held opens connections from each host and uses them until end is called, which requires that none
// of them died.
func (w *world) held(t *testing.T, each int) (end func()) {
	t.Helper()
	report := w.watched(t, each, 500*time.Millisecond)
	return func() {
		if r := report(); r.Lost() > 0 || r.Answered < len(trafficTargets()) {
			t.Errorf("of %d connections of each host %d died: %d reset, %d closed, %d silent: %v",
				each, r.Lost(), r.Reset, r.Closed, r.Silent, r.Errors)
		}
	}
}

// deathPatience is the time after which a silent connection counts as dead. An emulated machine
// that shares its processors leaves live connections without an answer for more than five seconds.
const deathPatience = time.Minute

// watched opens connections from each host and uses them at an interval until report is called,
// which sums up what happened.
func (w *world) watched(t *testing.T, each int, interval time.Duration) (
	report func() netnstest.ConnsReport) {
	t.Helper()
	targets := trafficTargets()
	reports := make(chan netnstest.ConnsReport, len(targets))
	ctx, cancel := context.WithCancel(t.Context())
	for host, addr := range targets {
		conns := ok(netnstest.OpenConns(t.Context(), w.hosts[host], addr, each))(t)
		t.Cleanup(func() { conns.Close() })
		go func() { reports <- conns.Watch(ctx, interval, deathPatience) }()
	}

	return func() (sum netnstest.ConnsReport) {
		cancel()
		for range targets {
			addReport(&sum, <-reports)
		}
		return sum
	}
}

// addReport adds a report to a sum.
func addReport(sum *netnstest.ConnsReport, r netnstest.ConnsReport) {
	sum.Answered, sum.Reset = sum.Answered+r.Answered, sum.Reset+r.Reset
	sum.Closed, sum.Silent = sum.Closed+r.Closed, sum.Silent+r.Silent
	sum.Errors = append(sum.Errors, r.Errors...)
}

// newTraffic makes hosts open connections until end is called. end requires that all of them except
// lost ones were answered.
func (w *world) newTraffic(t *testing.T, lost int) (end func()) {
	t.Helper()
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
		if len(bad) > lost {
			t.Errorf("%d not answered, such as %s", len(bad), bad[0])
		}
		t.Logf("%d new connections and datagrams, %d not answered", total.Load(), len(bad))
	}
}

// ask opens connections and sends datagrams without a pause until ctx is done. It returns the
// unanswered ones.
func (w *world) ask(ctx context.Context, host string, to netip.AddrPort) (asked int, bad []string) {
	for ctx.Err() == nil {
		probes := []netnstest.Probe{{From: w.hosts[host], Proto: servicemodel.TCP, To: to},
			{From: w.hosts[host], Proto: servicemodel.UDP, To: to}}
		for i, o := range netnstest.SendAll(context.WithoutCancel(ctx), probes) {
			if asked++; o.Kind != netnstest.Answered {
				bad = append(bad, fmt.Sprintf("%v: %v", probes[i], o))
			}
		}
	}

	return asked, bad
}

// switchTo switches the world's engine to another backend and requires that nothing is left of the
// previous one.
func (w *world) switchTo(t *testing.T, under Backend) {
	t.Helper()
	b := ok(under.Open(w.Node.NS.NetNS()))(t)
	before := w.backend
	r := ok(w.engine.Switch(t.Context(), b))(t)
	w.under, w.backend = under, b
	o, err := before.Observe(t.Context(), nil)
	if err != nil || o.Table.Len() > 0 || len(o.Drift) > 0 {
		t.Errorf("left of %s: %v, %v, %v", before.Name(), o, err, r)
	}
	must(t, before.Close())
	t.Logf("switched from %s to %s in %v", before.Name(), b.Name(), r.Duration)
}
