package dataplanetest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// silentPort is a port where packets arrive without an answer.
const silentPort uint16 = 9999

// silence makes a host accept packets to silentPort without an answer. Nothing reads the datagrams,
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

// silentEndpointGoes replaces a silent endpoint by an endpoint that answers, while clients send
// datagrams to it and try to connect. The kernel sends a SYN again after a second.
func silentEndpointGoes(kept bool) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		if kept {
			w.keepFlows(t, servicemodel.ConnectionPolicy{})
		}
		w.silence(t, "pod2")
		s := state(podCIDRs(thisNode()), web(sticky(time.Hour)),
			each(eps("pod2"), listening(silentPort)))
		w.apply(t, s)

		ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer stop()
		var sending sync.WaitGroup
		ways := slices.DeleteFunc(w.ways(silentClients, cluster), isSCTP)
		for _, y := range ways {
			send := map[servicemodel.Protocol]func(context.Context, string) error{
				servicemodel.TCP: connectTo, servicemodel.UDP: sendTo}[y.proto]
			sending.Go(func() { // a connection must fail; a datagram is refused at most
				_ = w.hosts[y.from].NS.Do(func() error { return send(ctx, y.to.String()) })
			})
		}

		time.Sleep(100 * time.Millisecond)
		w.apply(t, and(s, web(sticky(time.Hour)), eps("pod3")))
		sending.Wait()
		for _, y := range ways {
			w.requireHost(t, y, 3, "pod3")
		}
	}
}

func isSCTP(y way) bool { return y.proto == servicemodel.SCTP }

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

// turnover is the time for which endpoints are replaced while clients connect.
const turnover = 2500 * time.Millisecond

// turnoverPatience limits the wait of each state.
const turnoverPatience = 20 * time.Second

// neverBack removes endpoints and adds them again, one after the other, while clients connect as
// fast as they can. apply returns a function that applies states until its context ends. A
// connection between the end of an apply and the beginning of the next must reach only the
// endpoints of that apply.
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
		for _, y := range slices.DeleteFunc(w.ways(clients, cluster), isSCTP) {
			clientsDone.Go(func() {
				for ctx.Err() == nil {
					before := now.Load()
					got := w.probe(y).Send(ctx)
					if before == nil || now.Load() != before || got.Kind == netnstest.Failed {
						continue
					}
					checked.Add(1)
					host, isA := strings.CutSuffix(got.Server, serverName("", scenario.PortA))
					if !isA || !slices.Contains(*before, host) {
						t.Errorf("%s: only %v are left, got %s", y, *before, got)
						return
					}
				}
			})
		}

		changes := 0
		for end := time.Now().Add(turnover); time.Now().Before(end); changes++ {
			set := sets[(changes+1)%len(sets)]
			now.Store(nil)
			apply(and(base, web(sticky(timeout)), eps(set...)))
			now.Store(&set)
			time.Sleep(50 * time.Millisecond)
			n := checked.Load() // a connection takes longer on a slow machine
			await(t, "a connection", func() bool { return checked.Load() > n })
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

// byProcesses applies each state in a new process.
func byProcesses(_ context.Context, t *testing.T, w *world) func(servicemodel.State) {
	return func(s servicemodel.State) { must(t, w.under.apply(t.Context(), w.Node.NS, s)) }
}

// besideCommits sets the states in a running engine. Every 5 ms it replaces an endpoint of another
// service with affinity. A state counts as applied once the kernel has forgotten the clients of
// earlier endpoints.
func besideCommits(ctx context.Context, t *testing.T, w *world) func(servicemodel.State) {
	other := web(named("other", clusterIP2), sticky(time.Hour))
	var mu sync.Mutex
	var now servicemodel.State
	n := 0
	set := func(s *servicemodel.State) dataplane.Revision {
		mu.Lock()
		defer mu.Unlock()
		if s != nil {
			now = *s
		}
		n++
		e := eps("pod2")[0]
		e.Addr = netip.AddrFrom4([4]byte{10, 250, byte(n >> 8), byte(n)})
		return w.engine.Set(w.under.expressible(now.WithService(other).WithEndpoints(other.Name,
			[]servicemodel.Endpoint{e})))
	}

	var sweeps atomic.Int64
	t.Cleanup(w.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
		if _, ok := ev.(dataplane.Settled); ok {
			sweeps.Add(1)
		}
	}))

	var work sync.WaitGroup
	begin := sync.OnceFunc(func() {
		work.Go(func() { _ = w.engine.Run(ctx, nil) }) // the error is the context's
		work.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
				set(nil)
			}
		})
	})
	t.Cleanup(work.Wait)
	return func(s servicemodel.State) {
		rev := set(&s)
		begin()
		must(t, w.engine.Wait(ctx, rev))
		from := sweeps.Load()
		await(t, "clients to be forgotten", func() bool {
			return w.forgotten(sweeps.Load() - from)
		})
	}
}

// forgotten reports whether an engine that keeps committing has forgotten the clients of an earlier
// commit. The first sweep after the commit may have ended its wait for packets before the commit.
// The second sweep deletes the clients. The third sweep deletes clients that were added again by
// packets in flight during the deletion. Such packets are few, so a fourth sweep finds no clients.
func (w *world) forgotten(sweeps int64) bool {
	// IPVS remembers clients in its connections, which the commit itself changes.
	return w.under.OwnConnections || sweeps >= 4 || w.engine.Status().Settle.IsZero()
}

// await waits until so returns true, or the test has failed.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(turnoverPatience); !so() && !t.Failed(); {
		if time.Now().After(end) {
			t.Fatalf("waited for %s, in vain for %s", what, turnoverPatience)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
