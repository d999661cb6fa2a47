package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// affinityStories are about clients that must not be sent back to an endpoint that was removed.
var affinityStories = []story{
	{"a client does not go back to a silent endpoint that is gone", silentEndpointGoes(false)},
	{"a client does not go back to a silent endpoint that is gone, flows being kept",
		silentEndpointGoes(true)},
	{"no new connection reaches an endpoint that was taken away, affinity of a second",
		neverBack(time.Second, inTurn)},
	{"no new connection reaches an endpoint that was taken away, affinity of two seconds",
		neverBack(2*time.Second, inTurn)},
	{"no new connection reaches an endpoint that was taken away, affinity of an hour",
		neverBack(time.Hour, inTurn)},
	{"no new connection reaches an endpoint that was taken away a second ago, beside commits",
		neverBack(time.Hour, besideCommits)},
}

// silentPort is a port where packets arrive without an answer.
const silentPort uint16 = 9999

// silence makes a host accept packets to silentPort and answer none. Nothing reads the datagrams,
// and the listener's queue is full, so the kernel drops further connections (tcp_conn_request in
// net/ipv4/tcp_input.c).
func (w *world) silence(t *testing.T, host string) {
	t.Helper()
	h := w.hosts[host]
	must(t, h.NS.SetSysctl("net/core/somaxconn", "0"))
	err := h.NS.Do(func() error {
		for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
			at := netip.AddrPortFrom(a, silentPort)
			udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			t.Cleanup(func() { udp.Close() })
			tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			t.Cleanup(func() { tcp.Close() })
			conn, err := net.DialTimeout("tcp", at.String(), time.Second)
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
		}
		return nil
	})
	if err != nil {
		t.Fatalf("silence %s: %v", host, err)
	}
}

// silentClients are hosts that send to silent endpoints.
var silentClients = []string{"pod1", "outside1", "node"}

// silentEndpointGoes replaces a silent endpoint by one that answers, while clients send it
// datagrams and try to connect. The kernel sends a SYN again after a second.
func silentEndpointGoes(kept bool) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		if kept {
			w.keepFlows(t, servicemodel.ConnectionPolicy{})
		}
		w.silence(t, "pod2")
		silent := each(eps("pod2"), func(e *servicemodel.Endpoint) {
			for i := range e.Ports {
				e.Ports[i].Port = silentPort
			}
		})
		s := state(podCIDRs(thisNode()), web(sticky(time.Hour)), silent)
		w.apply(t, s)

		ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer stop()
		var sending sync.WaitGroup
		for _, from := range silentClients {
			for _, f := range families {
				to := netip.AddrPortFrom(clusterIP[f], servicePort).String()
				// nolint:errcheck // it must fail
				sending.Go(func() {
					w.hosts[from].NS.Do(func() error { return connectTo(ctx, to) })
				})
				// nolint:errcheck // refused at most
				sending.Go(func() { w.hosts[from].NS.Do(func() error { return sendTo(ctx, to) }) })
			}
		}
		time.Sleep(100 * time.Millisecond)
		w.apply(t, and(s, web(sticky(time.Hour)), eps("pod3")))
		sending.Wait()

		for _, from := range silentClients {
			for _, f := range families {
				for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
					to := netip.AddrPortFrom(clusterIP[f], servicePort)
					count := w.shares(t, from, p, to, 3)
					if count[serverName("pod3", PortA)] != 3 {
						t.Errorf("%s from %s to %s: only pod3 is left, got %v", p, from, to, count)
					}
				}
			}
		}
	}
}

// connectTo tries to connect until the context ends.
func connectTo(ctx context.Context, to string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	return conn.Close()
}

// sendTo sends datagrams of one flow, one after the other, until the context ends.
func sendTo(ctx context.Context, to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		conn.Write([]byte("a line\n")) //nolint:errcheck // it may be refused for a moment
		time.Sleep(time.Millisecond)
	}
	return nil
}

// turnover is how long endpoints are replaced while clients connect.
const turnover = 2500 * time.Millisecond

// turnoverPatience is how long a state waits for the first connection that is checked.
const turnoverPatience = 20 * time.Second

// neverBack removes endpoints and gives them back, one after the other, while clients connect as
// fast as they can. apply makes the kernel hold states until its context ends. A connection between
// the end of an apply and the begin of the next must reach only the endpoints of that apply.
func neverBack(timeout time.Duration, apply func(ctx context.Context, t *testing.T,
	w *world) func(servicemodel.State)) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		sets := [][]string{{"pod2", "pod3"}, {"pod3"}, {"pod3", "remote1"}, {"remote1"},
			{"remote1", "pod2"}, {"pod2"}}
		var now atomic.Pointer[[]string] // the endpoints of the last apply; nil during an apply
		base := state(podCIDRs(thisNode()), web(sticky(timeout)), eps(sets[0]...))
		w.apply(t, base)

		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		apply := apply(ctx, t, w)
		var clientsDone sync.WaitGroup
		var checked atomic.Int64
		for _, from := range clients {
			for _, f := range families {
				for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
					probe := netnstest.Probe{From: w.hosts[from], Proto: p,
						To: netip.AddrPortFrom(clusterIP[f], servicePort)}
					clientsDone.Go(func() {
						for ctx.Err() == nil {
							before := now.Load()
							got := probe.Send(ctx)
							if before == nil || now.Load() != before ||
								got.Kind == netnstest.Failed {
								continue
							}
							checked.Add(1)
							if err := oneOf(got, *before); err != nil {
								t.Errorf("%s: %v", probe, err)
								return
							}
						}
					})
				}
			}
		}
		changes := 0
		for end := time.Now().Add(turnover); time.Now().Before(end); changes++ {
			set := sets[(changes+1)%len(sets)]
			now.Store(nil)
			apply(and(base, web(sticky(timeout)), eps(set...)))
			now.Store(&set)
			time.Sleep(50 * time.Millisecond)
			awaitMore(t, &checked) // a connection takes longer on a slow machine
		}
		stop()
		clientsDone.Wait()
		t.Logf("%d changes, %d connections checked", changes, checked.Load())
	}
}

// inTurn applies states, one after the other.
func inTurn(_ context.Context, t *testing.T, w *world) func(servicemodel.State) {
	return func(s servicemodel.State) { w.apply(t, s) }
}

// byProcesses applies each state in a process of its own.
func byProcesses(_ context.Context, t *testing.T, w *world) func(servicemodel.State) {
	return func(s servicemodel.State) { must(t, w.under.apply(t.Context(), w.Node.NS, s)) }
}

// besideCommits lets a running engine hold the states. Every 5 ms it replaces an endpoint of
// another service with affinity. A second after a state was set, no client may meet an earlier one.
func besideCommits(ctx context.Context, t *testing.T, w *world) func(servicemodel.State) {
	var now atomic.Pointer[servicemodel.State]
	var work sync.WaitGroup
	work.Go(func() { _ = w.engine.Run(ctx, nil) }) // the error is the context's
	work.Go(func() {
		other := web(named("other", clusterIP2), sticky(time.Hour))
		for n := 0; ctx.Err() == nil; n++ {
			if s := now.Load(); s != nil {
				e := eps("pod2")[0]
				e.Addr = netip.AddrFrom4([4]byte{10, 250, byte(n >> 8), byte(n)})
				w.engine.Set(w.under.expressible(s.WithService(other).WithEndpoints(other.Name,
					[]servicemodel.Endpoint{e})))
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.Cleanup(work.Wait)
	return func(s servicemodel.State) {
		now.Store(&s)
		time.Sleep(time.Second)
	}
}

// awaitMore waits until the count has grown, or the test has failed.
func awaitMore(t *testing.T, count *atomic.Int64) {
	before, patience := count.Load(), time.Now().Add(turnoverPatience)
	for count.Load() == before && !t.Failed() {
		if time.Now().After(patience) {
			t.Fatalf("no connection was checked within %s", turnoverPatience)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// oneOf returns an error unless the outcome is an answer of one of the hosts.
func oneOf(got netnstest.Outcome, hosts []string) error {
	for _, h := range hosts {
		if got.Kind == netnstest.Answered && got.Server == serverName(h, PortA) {
			return nil
		}
	}
	return fmt.Errorf("only %v are left, got %s", hosts, got)
}
