package dataplanetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
	// rollPatience is longer than answers take on a busy machine, so that a client has one datagram
	// on its way when its flow is moved.
	rollPatience = 250 * time.Millisecond
	// A connection hangs if it waits so long for an answer while the others get so many: on a
	// starved machine all wait.
	hangTime    = 2 * time.Second
	hangAnswers = 300
)

var errHangs = errors.New("hangs, while others get answers")

// rollTime is how long endpoints are replaced: a minute, or what the variable KERNLB_TEST_ROLL
// says, such as "1m"; short by default.
func rollTime(t *testing.T) time.Duration {
	s := os.Getenv("KERNLB_TEST_ROLL")
	if s == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("KERNLB_TEST_ROLL: %v", err)
	}
	return d
}

// rolling returns the story of a service whose endpoints are replaced one after the other, all the
// time, under load.
func rolling(p servicemodel.ConnectionPolicy) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		_, keeper := w.keepFlows(t, p)
		r := &roll{world: w, t: t, policy: p}
		for range rollEndpoints {
			r.add()
		}
		w.apply(t, r.state())
		var udp streams
		for i := range uint16(rollClients) {
			s := w.stream(t, []string{"pod1", "outside1"}[i%2], streamPort+i,
				netip.AddrPortFrom(clusterIP[i/2%2], flowPort))
			s.patience = rollPatience
			udp = append(udp, s)
		}
		var tcp []*caller
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range rollClients {
			tcp = append(tcp, r.call(ctx, []string{"pod1", "outside1"}[i%2],
				netip.AddrPortFrom(clusterIP[i/2%2], flowPort)))
		}
		udp.start()
		changes, applies := r.roll(ctx, keeper.Totals)
		udp.stop()
		cancel()
		r.calls.Wait()
		t.Logf("%s: %d changes in %d applies; flows: %+v", p, changes, applies, keeper.Totals())
		r.report(udp, tcp, keeper.Totals().Misdirected-keeper.Totals().Reset)
	}
}

// roll is a rolling replacement under way.
type roll struct {
	*world
	t      *testing.T
	policy servicemodel.ConnectionPolicy
	calls  sync.WaitGroup

	next    uint16
	current []*member
	leaving []*member // of those that are not in the service any more, the oldest first

	answers atomic.Int64 // of TCP servers

	mu   sync.Mutex
	uses map[string]int // TCP connections by server
}

// member is one endpoint and its servers.
type member struct {
	host string
	port uint16
	left time.Time
	stop map[netnstest.Protocol]func()
}

// add starts an endpoint. No two ever have the same port.
func (r *roll) add() {
	hosts := []string{"pod2", "pod3", "remote1", "remote2"}
	m := &member{host: hosts[int(r.next)%len(hosts)], port: rollFirstPort + r.next,
		stop: map[netnstest.Protocol]func(){}}
	r.next++
	for _, p := range []netnstest.Protocol{netnstest.UDP, netnstest.TCP} {
		m.stop[p] = r.serve(r.t, m.host, p, m.port)
	}
	r.current = append(r.current, m)
}

func (r *roll) state() servicemodel.State {
	var l []servicemodel.Endpoint
	for _, m := range r.current {
		l = append(l, each(eps(m.host), func(e *servicemodel.Endpoint) {
			e.Ports = []servicemodel.EndpointPort{{Name: "udp", Protocol: servicemodel.UDP,
				Port: m.port}, {Name: "tcp", Protocol: servicemodel.TCP, Port: m.port}}
		})...)
	}
	return flowState(l)
}

// roll replaces the oldest endpoint, again and again. What ran at an endpoint that is gone ends
// when the kernel knows: for UDP at once, for TCP when the policy leaves it no connections.
func (r *roll) roll(ctx context.Context, cut func() conntrack.CleanResult) (changes, applies int) {
	applied := make(chan *servicemodel.Table, 1024)
	defer RunEngine(r.t, r.engine, r.state())()
	defer r.engine.Subscribe(func(_ context.Context, ev dataplane.Event) {
		switch ev := ev.(type) {
		case dataplane.Applied:
			applied <- ev.Changes.New
		case dataplane.Failed:
			r.t.Errorf("%s: %v", ev.Doing, ev.Err)
		}
	})()
	tick := time.NewTicker(rollInterval)
	defer tick.Stop()
	for end := time.Now().Add(rollTime(r.t)); time.Now().Before(end); changes++ {
		<-tick.C
		r.add()
		gone := r.current[0]
		r.current = slices.Clone(r.current[1:])
		r.leaving = append(r.leaving, gone)
		r.engine.Set(r.state())
		applies += r.end(applied)
	}
	if r.policy.Mode == servicemodel.DrainConnections {
		time.Sleep(r.policy.Drain + 200*time.Millisecond) // what is left is cut meanwhile
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

// end stops the servers of endpoints that the kernel does not know any more.
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
			m.left = time.Now()
		}
		if stop := m.stop[netnstest.UDP]; stop != nil && time.Since(m.left) > serverGrace {
			stop()
			delete(m.stop, netnstest.UDP)
		}
		if time.Since(m.left) < time.Second || r.used(serverName(m.host, m.port)) > 0 {
			return false // connections are still on their way to it, or there
		}
		m.stop[netnstest.TCP]()
		return true
	})
	return n
}

func (r *roll) used(server string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.uses[server]
}

func (r *roll) use(server string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses == nil {
		r.uses = map[string]int{}
	}
	r.uses[server] += n
}

// caller is a TCP client that keeps a connection, and connects again when it breaks.
type caller struct {
	connects, pings          int
	refused, reset, timeouts int
	closed                   int
	worst                    time.Duration // from the last answer to the next, over a reconnect
	errs                     []error
}

// call runs a caller until ctx ends.
func (r *roll) call(ctx context.Context, from string, to netip.AddrPort) *caller {
	c := &caller{}
	r.calls.Go(func() {
		last := time.Now()
		for ctx.Err() == nil {
			if err := c.session(ctx, r, from, to, &last); err != nil &&
				(ctx.Err() == nil || errors.Is(err, errHangs)) {
				c.count(err)
			}
		}
	})
	return c
}

// session is one connection: it pings until something breaks.
func (c *caller) session(ctx context.Context, r *roll, from string, to netip.AddrPort,
	last *time.Time) error {
	var conn *net.TCPConn
	err := r.hosts[from].NS.Do(func() (err error) {
		conn, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c.connects++
	conn.SetLinger(0)  //nolint:errcheck // leaves no connection in TIME_WAIT
	defer conn.Close() //nolint:errcheck // nothing is owed
	in := bufio.NewReader(conn)
	line, err := r.await(ctx, conn, in)
	if err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	server, _, _ := strings.Cut(line, " ")
	r.use(server, 1)
	defer r.use(server, -1)
	for {
		c.worst = max(c.worst, time.Since(*last))
		*last = time.Now()
		if ctx.Err() != nil {
			return nil
		}
		if _, err := conn.Write([]byte("ping\n")); err != nil {
			return err
		}
		if _, err := r.await(ctx, conn, in); err != nil {
			return fmt.Errorf("%s to %s: %w", conn.LocalAddr(), server, err)
		}
		c.pings++
		time.Sleep(5 * time.Millisecond)
	}
}

// await reads a line, until ctx ends or the connection hangs.
func (r *roll) await(ctx context.Context, conn *net.TCPConn, in *bufio.Reader) (string, error) {
	start, others := time.Now(), r.answers.Load()
	for {
		conn.SetReadDeadline(time.Now().Add(hangTime / 20)) //nolint:errcheck // reading tells
		line, err := in.ReadString('\n')
		switch {
		case err == nil:
			r.answers.Add(1)
			return line, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return "", err
		case time.Since(start) > hangTime && r.answers.Load()-others >= hangAnswers:
			return "", fmt.Errorf("%w: %s, %d answers", errHangs, time.Since(start),
				r.answers.Load()-others)
		case ctx.Err() != nil:
			return "", ctx.Err()
		}
	}
}

func (c *caller) count(err error) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		c.refused++
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.reset++
	case errors.Is(err, io.EOF):
		c.closed++
	default:
		c.timeouts++
	}
	if len(c.errs) < 5 {
		c.errs = append(c.errs, err)
	}
}

// report prints what was lost and broken, and compares it with what the policy allows. moved is how
// many UDP flows were deleted.
func (r *roll) report(udp streams, tcp []*caller, moved int) {
	var sent, lost, refused, stays int
	for _, s := range udp {
		y := s.tally()
		sent, lost, refused, stays = sent+y.sent, lost+y.lost, refused+y.refused,
			stays+len(y.answers)
	}
	var c caller
	for _, o := range tcp {
		c.connects, c.pings = c.connects+o.connects, c.pings+o.pings
		c.refused, c.reset, c.timeouts, c.closed = c.refused+o.refused, c.reset+o.reset,
			c.timeouts+o.timeouts, c.closed+o.closed
		c.worst = max(c.worst, o.worst)
		c.errs = append(c.errs, o.errs...)
	}
	r.t.Logf(
		"%s: UDP: %d datagrams, %d lost, %d refused, %d moved, %d stays at a server; TCP: %d "+
			"connections, %d pings, %d reset, %d closed, %d timed out, %d connects refused, worst "+
			"pause %s",
		r.policy, sent, lost, refused, moved, stays, c.connects, c.pings, c.reset, c.closed,
		c.timeouts, c.refused, c.worst)
	// The answer to a datagram that was on its way to the old endpoint does not find its way back.
	// IPVS moves flows by itself, too, at the price of a datagram: nobody counts those, but a
	// client is moved once from each endpoint that answered it, since none comes back.
	if r.under.OwnConnections {
		moved = max(moved, stays)
	}
	if lost > moved {
		r.t.Errorf("%d datagrams lost, though clients were moved only %d times", lost, moved)
	}
	if c.timeouts+c.closed+c.refused > 0 || len(tcp) > c.connects {
		r.t.Errorf("connections hung or were refused: %v", c.errs)
	}
	switch cuts := r.policy.Mode != servicemodel.ConnectionsDefault; {
	case !cuts && c.reset > 0:
		r.t.Errorf("connections were to be left, and %d were reset: %v", c.reset, c.errs)
	case cuts && c.reset == 0:
		r.t.Error("connections were to be cut, and none was")
	case cuts && (c.connects < c.reset-len(tcp) || c.connects > c.reset+len(tcp)):
		// Each client may have been about to connect when the story ended, or have been reset
		// while it did.
		r.t.Errorf(
			"%d connections, %d of them reset, %d clients: not each that was reset has another",
			c.connects, c.reset, len(tcp))
	}
}
