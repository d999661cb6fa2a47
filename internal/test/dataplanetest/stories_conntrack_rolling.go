package dataplanetest

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	rollEndpoints = 10
	rollInterval  = 10 * time.Millisecond // 100 changes a second
	rollClients   = 10
	rollFirstPort = uint16(20000)
	// rollPatience is longer than answers need on a busy machine, so that a client has one datagram
	// in flight when its flow is moved.
	rollPatience = 250 * time.Millisecond
	// hangTime is longer than an answer takes on the busiest machine.
	hangTime = 30 * time.Second
)

// rolling returns the story of a service whose endpoints are replaced continuously, one after the
// other, under load. The variable KERNLB_TEST_ROLL sets the duration, such as "1m".
func rolling(p servicemodel.ConnectionPolicy) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		keeper := w.keepFlows(t, p)
		r := &roll{world: w, t: t, policy: p, uses: map[string]int{}}
		for range rollEndpoints {
			r.add()
		}
		w.apply(t, r.state())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var udp streams
		for i := range uint16(rollClients) {
			from, to := []string{"pod1", "outside1"}[i%2],
				netip.AddrPortFrom(clusterIP[i/2%2], flowPort)
			s := w.stream(t, from, streamPort+i, to)
			s.patience = rollPatience
			udp = append(udp, s)
			r.calls.Go(func() { r.call(ctx, from, to) })
		}

		udp.start()
		changes, applies := r.roll(ctx, keeper.Totals)
		udp.stop()
		cancel()
		r.calls.Wait()
		t.Logf("%s: %d changes in %d applies; flows: %+v", p, changes, applies, keeper.Totals())
		r.report(udp, keeper.Totals().Misdirected-keeper.Totals().Reset)
	}
}

// roll is a rolling replacement in progress.
type roll struct {
	*world
	t      *testing.T
	policy servicemodel.ConnectionPolicy
	calls  sync.WaitGroup

	next    uint16
	current []*member
	leaving []*member // no longer in the service, the oldest first

	settled atomic.Int64 // calls of Settle
	ended   int          // servers for UDP

	mu   sync.Mutex
	uses map[string]int // TCP connections by server
	tcp  calls
}

// calls counts the fates of TCP clients.
type calls struct {
	netnstest.ConnsReport
	connects, refused int
	worst             time.Duration // from the last answer to the next, over a reconnect
}

// count counts the fate of a client.
func (r *roll) count(add func(c *calls)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.tcp)
}

// member is one endpoint and its servers.
type member struct {
	host    string
	port    uint16
	left    time.Time
	settled int64 // calls of Settle when it left
	stop    map[servicemodel.Protocol]func()
}

// add starts an endpoint. No two ever have the same port.
func (r *roll) add() {
	hosts := []string{"pod2", "pod3", "remote1", "remote2"}
	m := &member{host: hosts[int(r.next)%len(hosts)], port: rollFirstPort + r.next,
		stop: map[servicemodel.Protocol]func(){}}
	r.next++
	for _, p := range []servicemodel.Protocol{servicemodel.UDP, servicemodel.TCP} {
		m.stop[p] = r.serve(r.t, m.host, p, m.port)
	}
	r.current = append(r.current, m)
}

func (r *roll) state() servicemodel.State {
	var l []servicemodel.Endpoint
	for _, m := range r.current {
		l = append(l, each(eps(m.host), listening(m.port))...)
	}
	return flowState(l)
}

// roll replaces the oldest endpoint, again and again. The UDP server at a removed endpoint ends
// after its flows were moved, and the TCP server ends when the policy leaves it no connections.
func (r *roll) roll(ctx context.Context, cut func() conntrack.CleanResult) (changes, applies int) {
	applied := make(chan *servicemodel.Table, 1024)
	defer RunEngine(r.t, r.engine, r.state())()
	defer r.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
		switch ev := ev.(type) {
		case dataplane.Applied:
			applied <- ev.Changes.New
		case dataplane.Settled:
			r.settled.Add(1)
		case dataplane.Failed:
			r.t.Errorf("%s: %v", ev.Doing, ev.Err)
		}
	})()

	rolling := fromEnv(r.t, "KERNLB_TEST_ROLL", 3*time.Second, time.ParseDuration)
	tick := time.NewTicker(rollInterval)
	defer tick.Stop()

	// On a starved machine, it takes longer until the first server has ended.
	enough, end := time.Now().Add(rolling), time.Now().Add(rolling+time.Minute)
	for now := range tick.C {
		if now.After(enough) && (r.ended > 0 || now.After(end)) {
			break
		}
		changes++
		r.add()
		gone := r.current[0]
		r.current = slices.Clone(r.current[1:])
		r.leaving = append(r.leaving, gone)
		r.engine.Set(r.state())
		applies += r.end(applied)
	}

	if r.policy.Mode == servicemodel.DrainConnections {
		time.Sleep(r.policy.Drain + 200*time.Millisecond) // during this time, the rest is cut
		for end := time.Now().Add(time.Minute); cut().Reset == 0 && time.Now().Before(end); {
			// the machine is starved, and the first apply was late
			time.Sleep(100 * time.Millisecond)
		}
	}

	if err := r.engine.Wait(ctx, r.engine.Status().Wanted); err != nil {
		r.t.Error(err)
	}
	return changes, applies + r.end(applied)
}

// end stops the servers of endpoints that the kernel no longer has.
func (r *roll) end(applied <-chan *servicemodel.Table) (n int) {
	var table *servicemodel.Table
	for ; len(applied) > 0; n++ {
		table = <-applied
	}
	in := map[netip.AddrPort]bool{}
	for p := range table.Pools() {
		for _, s := range p.Slots {
			in[s.Endpoint] = true
		}
	}

	r.leaving = slices.DeleteFunc(r.leaving, func(m *member) bool {
		if table == nil || in[netip.AddrPortFrom(hostAddrs(m.host)[0], m.port)] {
			return false
		}
		if m.left.IsZero() {
			m.left, m.settled = time.Now(), r.settled.Load()
		}

		// The first of these two calls may have begun before the kernel got the change.
		moved := r.settled.Load() >= m.settled+2
		stop := m.stop[servicemodel.UDP]
		if stop != nil && moved && time.Since(m.left) > serverGrace {
			stop()
			delete(m.stop, servicemodel.UDP)
			r.ended++
		}

		if time.Since(m.left) < time.Second || r.use(serverName(m.host, m.port), 0) > 0 {
			return false // connections are still on their way to it, or there
		}
		m.stop[servicemodel.TCP]()
		return true
	})
	return n
}

// use adds n to the connections of a server, and returns their number.
func (r *roll) use(server string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uses[server] += n
	return r.uses[server]
}

// call is a TCP client that keeps a connection, and connects again when it breaks, until ctx ends.
func (r *roll) call(ctx context.Context, from string, to netip.AddrPort) {
	last := time.Now()
	for ctx.Err() == nil {
		conns, err := netnstest.OpenConns(ctx, r.hosts[from], to, 1)
		switch {
		case err == nil:
			r.count(func(c *calls) { c.connects++ })
			r.session(ctx, conns, &last)
			conns.Close() //nolint:errcheck // the connection is done
		case ctx.Err() != nil:
		case strings.Contains(err.Error(), syscall.ECONNRESET.Error()): // before the greeting
			r.count(func(c *calls) { c.connects, c.Reset = c.connects+1, c.Reset+1 })
		default:
			r.count(func(c *calls) { c.refused, c.Errors = c.refused+1, append(c.Errors, err) })
		}
	}
}

// session uses a connection until it breaks, or ctx ends.
func (r *roll) session(ctx context.Context, conns *netnstest.Conns, last *time.Time) {
	for server := range conns.Servers() {
		r.use(server, 1)
		defer r.use(server, -1)
	}

	for p := (netnstest.ConnsReport{}); ctx.Err() == nil && p.Lost() == 0; {
		pause := time.Since(*last)
		*last = time.Now()
		p = conns.Ping(hangTime)
		r.count(func(c *calls) {
			c.worst = max(c.worst, pause)
			addReport(&c.ConnsReport, p)
		})

		time.Sleep(5 * time.Millisecond)
	}
}

// report prints the losses and breaks, and compares them with the limits of the policy. moved is
// the number of deleted UDP flows.
func (r *roll) report(udp streams, moved int) {
	var sent, lost, refused, stays int
	for _, s := range udp {
		y := s.tally()
		sent, lost, refused, stays = sent+y.sent, lost+y.lost, refused+y.refused,
			stays+len(y.answers)
	}

	c := r.tcp
	r.t.Logf(
		"%s: UDP: %d datagrams, %d lost, %d refused, %d moved, %d stays at a server; TCP: %d "+
			"connections, %d pings, %d reset, %d closed, %d timed out, %d connects refused, worst "+
			"pause %s",
		r.policy, sent, lost, refused, moved, stays, c.connects, c.Answered, c.Reset, c.Closed,
		c.Silent, c.refused, c.worst)

	// The answer to a datagram in flight to the old endpoint does not find its way back. IPVS also
	// moves flows itself, and each move costs a datagram. The test cannot count these moves, but a
	// client is moved at most once from each endpoint that answered it, because no endpoint comes
	// back.
	if r.under.OwnConnections {
		moved = max(moved, stays)
	}
	if r.ended == 0 {
		r.t.Error("no server for UDP ended")
	}
	if lost > moved {
		r.t.Errorf("%d datagrams lost, though clients were moved only %d times", lost, moved)
	}
	if c.Silent+c.Closed+c.refused > 0 || rollClients > c.connects {
		r.t.Errorf("connections hung or were refused: %v", c.Errors)
	}
	switch cuts := r.policy.Mode != servicemodel.ConnectionsDefault; {
	case !cuts && c.Reset > 0:
		r.t.Errorf("connections were to be left, and %d were reset: %v", c.Reset, c.Errors)
	case cuts && c.Reset == 0:
		r.t.Error("connections were to be cut, and none was")
	case cuts && (c.connects < c.Reset-rollClients || c.connects > c.Reset+rollClients):
		// Each client may have been connecting, or may have been reset, when the story ended.
		r.t.Errorf(
			"%d connections, %d of them reset, %d clients: not each that was reset has another",
			c.connects, c.Reset, rollClients)
	}
}
