package nftables

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// mustChoose returns the slot that a client's hash chooses.
func mustChoose(t *testing.T, p *servicemodel.Pool, client netip.AddrPort) int {
	t.Helper()
	choose := Chooser(p)
	require.NotNil(t, choose)
	return choose(client)
}

// Each slot has the same chance, even where a level lacks most of its slots. By chi-squared, chance
// exceeds the bound once in a million.
func TestHashesAreFair(t *testing.T) {
	t.Parallel()
	const seed, n = 11, 20000
	r := rand.New(rand.NewPCG(seed, 1))
	for slots, bound := range map[int]float64{2: 23.9, 3: 27.6, 5: 33.4, 9: 42.7, 17: 57.9} {
		p := &servicemodel.Pool{Scheduler: "sh"}
		for i := range slots {
			p.Slots = append(p.Slots, servicemodel.Slot{Weight: 1,
				Endpoint: netip.AddrPortFrom(arenaEndpoint(i), 80)})
		}

		count, chi := make([]int, slots), 0.
		for _, c := range clients(r, n) {
			count[mustChoose(t, p, c)]++
		}
		shares := Shares(p)
		for i, got := range count {
			require.InEpsilon(t, 1/float64(slots), shares[i], 1./256)
			off := float64(got) - n*shares[i]
			chi += off * off / (n * shares[i])
		}

		require.Less(t, chi, bound, "seed %d: %v", seed, count)
	}
}

// The kernel sends each endpoint its share of the packets of many clients, even where a level lacks
// most of its units. By chi-squared, chance exceeds the bound once in a million.
func TestPacketsAreSharedFairly(t *testing.T) {
	t.Parallel()
	const seed, n = 12, 1500
	w := newArena(t, 5)
	for _, s := range []servicemodel.Scheduler{"sh", "mh"} {
		w.apply(s, 4, 4, 4, 4, 1)
		w.apply(s, 4, 3, 4, 4, 2) // leaves holes
		r := rand.New(rand.NewPCG(seed, 1))
		count, chi := map[netip.Addr]float64{}, 0.
		for range n {
			a := netip.AddrFrom4([4]byte{10, 1, byte(r.UintN(256)), byte(1 + r.UintN(254))})
			count[w.send(netip.AddrPortFrom(a, 0)).Addr()]++
		}

		for i, weight := range []float64{4, 3, 4, 4, 2} {
			want := n * weight / 17
			off := count[arenaEndpoint(i)] - want
			chi += off * off / want
		}

		require.Less(t, chi, 33.4, "seed %d, %s: %v", seed, s, count)
	}
}

// arena is a namespace with all clients and endpoints, and a backend in it.
type arena struct {
	t       *testing.T
	ns      *netnstest.NS
	backend *backend
	engine  *dataplane.Engine
	table   *servicemodel.Table
	given   chan netip.AddrPort // the endpoint that received the last packet
	port    uint16
	// prefer is the Prefer of the service. Every other endpoint is on this node. The endpoints in
	// failed are not ready.
	prefer string
	failed map[int]bool
	shares []uint16 // of the endpoints, see servicemodel.Endpoint.Share
	// received counts the packets at endpoints, and past counts packets that were not translated.
	received, past atomic.Int64
}

var (
	arenaName = servicemodel.Name{Namespace: "default", Name: "web"}
	arenaIP   = netip.MustParseAddr("10.96.0.1")
	arenaIP6  = netip.MustParseAddr("fd00:96::1")
)

func arenaEndpoint(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}) }

func arenaEndpoint6(i int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:244::%x", i+1))
}

// newArena creates an arena with a server at each of n endpoints of each family.
func newArena(t *testing.T, n int) *arena {
	t.Helper()
	ns, b := newNS(t)
	w := &arena{t: t, ns: ns, backend: b, engine: dataplane.New(b, nil),
		given: make(chan netip.AddrPort, 1), port: 1024}
	require.NoError(t, ns.Do(func() error {
		for _, args := range [][]string{{"link", "set", "lo", "up"},
			{"route", "add", "local", "10.0.0.0/8", "dev", "lo"},
			{"-6", "route", "add", "local", "fd00::/16", "dev", "lo"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
		}

		err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0)
		if err != nil {
			return err
		}

		// A packet that is not translated reaches the service itself, which has an address here.
		servers := []netip.AddrPort{netip.AddrPortFrom(arenaIP, 80)}
		for i := range n {
			servers = append(servers, netip.AddrPortFrom(arenaEndpoint(i), 8080),
				netip.AddrPortFrom(arenaEndpoint6(i), 8080))
		}

		for _, at := range servers {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			go func() {
				for buf := make([]byte, 8); ; {
					if _, _, err := c.ReadFrom(buf); err != nil {
						return
					}
					if at.Port() == 80 {
						w.past.Add(1)
						continue
					}

					w.received.Add(1)
					select {
					case w.given <- at:
					default: // in a flood nobody waits for this
					}
				}
			}()
		}

		return nil
	}))

	return w
}

// apply applies a service with a scheduler, and endpoints of these weights. An endpoint of weight 0
// is left out.
func (w *arena) apply(s servicemodel.Scheduler, weights ...uint16) *dataplane.Result {
	w.t.Helper()
	svc := &servicemodel.Service{Name: arenaName, Scheduler: s, Prefer: w.prefer,
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.UDP, Port: 80}},
		ClusterIPs: []netip.Addr{arenaIP, arenaIP6}}
	var eps []servicemodel.Endpoint
	for i, weight := range weights {
		for _, a := range []netip.Addr{arenaEndpoint(i), arenaEndpoint6(i)} {
			if weight > 0 {
				condition := servicemodel.Ready
				if w.failed[i] {
					condition = servicemodel.NotReady
				}
				var share uint16
				if i < len(w.shares) {
					share = w.shares[i]
				}
				eps = append(eps, servicemodel.Endpoint{Addr: a, Condition: condition, Share: share,
					Weight: weight, Node: []string{"here", "there"}[i%2],
					Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.UDP, Port: 8080}}})
			}
		}
	}

	r := ok(w.engine.Apply(w.t.Context(), servicemodel.State{}.WithNode(
		servicemodel.Node{Name: "here"}).WithService(svc).WithEndpoints(arenaName, eps)))(w.t)
	w.table = r.Changes.New
	return r
}

// send sends a datagram from a client, and returns the endpoint that it reaches. A client port of 0
// stands for a port that no other packet has, because conntrack remembers flows.
func (w *arena) send(client netip.AddrPort) (ep netip.AddrPort) {
	w.t.Helper()
	if client.Port() == 0 {
		w.port++
		client = netip.AddrPortFrom(client.Addr(), w.port)
	}

	vip := arenaIP
	if client.Addr().Is6() {
		vip = arenaIP6
	}
	require.NoError(w.t, w.ns.Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(client),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, 80)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}))

	select {
	case ep = <-w.given:
	case <-time.After(time.Minute):
		w.t.Fatalf("no endpoint got the packet of %v", client)
	}

	return ep
}

// clients returns n clients, of both families.
func clients(r *rand.Rand, n int) (l []netip.AddrPort) {
	for range n {
		a := netip.AddrFrom4([4]byte{10, 1, byte(r.UintN(256)), byte(1 + r.UintN(254))})
		if r.UintN(4) == 0 {
			a = netip.MustParseAddr(fmt.Sprintf("fd00:1::%x:%x", r.UintN(1<<16), r.UintN(1<<16)))
		}
		l = append(l, netip.AddrPortFrom(a, 0))
	}

	return l
}

func (w *arena) pool(client netip.Addr) *servicemodel.Pool {
	return w.table.Pool(servicemodel.PoolID{Service: servicemodel.PortName{Name: arenaName,
		Protocol: servicemodel.UDP}, Family: servicemodel.FamilyOf(client)})
}

// The kernel gives each client the endpoint of its hash, regardless of earlier states.
func TestHashesChooseWhatTheySay(t *testing.T) {
	t.Parallel()
	w := newArena(t, 12)
	r := rand.New(rand.NewPCG(1, 1))
	all := clients(r, 60)
	for _, s := range []servicemodel.Scheduler{"sh", "mh", "rr", "sh+port", "mh+port", "mh", "sh",
		"random", "sh+port+fallback"} {
		for _, weights := range [][]uint16{{1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
			{1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 2, 7}, {9, 9, 9}, {9, 8, 9}, {9, 8, 0, 5}} {
			w.apply(s, weights...)
			if way := form.WayOf(&servicemodel.Pool{Scheduler: s}); way != form.ByHash &&
				way != form.ByMaglev {
				continue
			}

			for _, c := range all {
				w.port++
				c = netip.AddrPortFrom(c.Addr(), w.port)
				p := w.pool(c.Addr())
				require.Equal(t, p.Slots[mustChoose(t, p, c)].Endpoint, w.send(c), "%v, %v, %v", s,
					weights, c)
			}
		}
	}
}

// The same holds for near endpoints while some of them fail, are removed and recover. Few packets
// reach a different endpoint than before, except packets that must move.
func TestNearHashesChooseWhatTheySay(t *testing.T) {
	t.Parallel()
	w := newArena(t, 12)
	w.prefer = "node"
	all := clients(rand.New(rand.NewPCG(2, 1)), 150)
	for _, s := range []servicemodel.Scheduler{"sh", "mh"} {
		var before []netip.AddrPort
		for _, tc := range []struct {
			left   []int
			failed map[int]bool
			least  float64 // the share of the clients that must move, by the levels' shares
		}{
			{nil, nil, 0},
			{nil, map[int]bool{2: true}, 1. / 6},
			{nil, map[int]bool{2: true, 4: true}, 1. / 5},
			{[]int{4}, map[int]bool{2: true}, 1. / 15},
			{nil, nil, 1. / 3},
		} {
			weights := slices.Repeat([]uint16{1}, 12)
			for _, i := range tc.left {
				weights[i] = 0
			}
			w.failed = tc.failed
			w.apply(s, weights...)
			var now []netip.AddrPort
			moved := 0
			for i, c := range all {
				p := w.pool(c.Addr())
				got := w.send(c)
				require.Equal(t, p.Slots[mustChoose(t, p, c)].Endpoint, got, "%s %v", s, c)
				now = append(now, got)
				if before != nil && got != before[i] {
					moved++
				}
			}

			share := float64(moved) / float64(len(all))
			require.Less(t, share, tc.least+.12, "%s, %v left, %v failed", s, tc.left, tc.failed)
			before = now
		}
	}
}

// In turn, each endpoint gets exactly its share of each round.
func TestTurnsAreExact(t *testing.T) {
	t.Parallel()
	w := newArena(t, 3)
	for _, tc := range []struct {
		s      servicemodel.Scheduler
		shares []int
	}{{"rr", []int{20, 20, 20}}, {"wrr", []int{10, 20, 30}}} {
		w.apply(tc.s, 1, 2, 3)
		count := map[netip.Addr]int{}
		for range 60 {
			count[w.send(netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), 0)).Addr()]++
		}
		for i, n := range tc.shares {
			require.Equal(t, n, count[arenaEndpoint(i)], "%s: %v", tc.s, count)
		}
	}
}

// Clients move only if they must: sh moves no client needlessly if an endpoint is added, and mh
// moves few clients if an endpoint is added or removed.
func TestFewClientsMove(t *testing.T) {
	t.Parallel()
	const n = 2000
	all := clients(rand.New(rand.NewPCG(7, 1)), n)
	pool := func(s servicemodel.Scheduler, endpoints int) *servicemodel.Pool {
		p := &servicemodel.Pool{Scheduler: s}
		for i := range endpoints {
			p.Slots = append(p.Slots, servicemodel.Slot{Weight: 1,
				Endpoint: netip.AddrPortFrom(arenaEndpoint(i), 8080)})
		}

		return p
	}

	for _, tc := range []struct {
		s        servicemodel.Scheduler
		from     int // the number of endpoints; one more is added or removed
		needless float64
	}{{"sh", 3, 0}, {"sh", 8, 0}, {"mh", 9, 0.06 * n}} { // 9 are in a different class
		fewer, more := pool(tc.s, tc.from), pool(tc.s, tc.from+1)
		moved, needless := 0, 0
		for _, c := range all {
			switch a, b := mustChoose(t, fewer, c), mustChoose(t, more, c); {
			case b == tc.from:
				moved++
			case a != b:
				needless++
			}
		}

		require.LessOrEqual(t, float64(needless), tc.needless, "%+v", tc)
		require.InDelta(t, float64(n)/float64(tc.from+1), float64(moved), 150, "%+v", tc)
	}
}

// No packet is refused or lost, and no packet passes the service untranslated, while the scheduler
// and the endpoints change, even if no service had a scheduler before.
func TestNoPacketFallsBetweenSchedulers(t *testing.T) {
	t.Parallel()
	const seed = 3
	w := newArena(t, 9)
	schedulers := []servicemodel.Scheduler{"", "rr", "sh", "mh", "wrr", "sh+port", "mh+port"}
	w.apply("", 1, 1)
	done := make(chan int64)
	go func() { done <- w.flood(1500 * time.Millisecond) }()
	r, changes := rand.New(rand.NewPCG(seed, 1)), 0
	for {
		weights := []uint16{1}
		for range r.IntN(9) {
			weights = append(weights, uint16(r.IntN(3)))
		}
		w.apply(schedulers[r.IntN(len(schedulers))], weights...)
		changes++
		select {
		case sent := <-done:
			t.Logf("seed %d: %d packets beside %d changes", seed, sent, changes)
			require.Equal(t, sent, w.received.Load())
			require.Zero(t, w.past.Load())
			return
		default:
		}
	}
}

// The cost of a change includes the transaction that adds the rules.
func TestRulesOfASchedulerCount(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	b, tap := tapped(t, ns)
	e := dataplane.New(b, nil)
	state := goldenSteps()[0].state
	ok(e.Apply(t.Context(), state))(t)
	batches, messages := 0, 0
	tap.Request = func(r []rawnltest.Message) {
		if len(r) > 1 {
			batches, messages = batches+1, messages+len(r)-2 // without the begin and end messages
		}
	}

	r := ok(e.Apply(t.Context(), state.WithService(goldenService(
		func(s *servicemodel.Service) { s.Scheduler = "sh" }))))(t)
	require.Equal(t, 2, batches)
	require.Equal(t, messages, r.Stats.Messages)
}

// flood sends packets of new flows for a time, slowly enough that no server's buffer is full. It
// returns the number of packets.
func (w *arena) flood(d time.Duration) (sent int64) {
	err := w.ns.Do(func() error {
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(arenaIP, 80))
		for end := time.Now().Add(d); time.Now().Before(end); sent++ {
			for sent-w.received.Load()-w.past.Load() > 64 && time.Now().Before(end) {
				runtime.Gosched()
			}
			c, err := net.DialUDP("udp", nil, to)
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("x"))
			c.Close()
			if err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		w.t.Errorf("a packet was refused: %v", err)
	}
	for end := time.Now().Add(time.Second); sent > w.received.Load()+w.past.Load() &&
		time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}

	return sent
}

func consecutive(n int) (l []int32) {
	for i := range n {
		l = append(l, int32(i))
	}
	return l
}

// Shares adds up to 1, follows weights as far as the schedulers do, and shows where a hash is
// slightly unfair.
func TestShares(t *testing.T) {
	t.Parallel()
	for by, epsilon := range map[servicemodel.Scheduler]float64{"": 1e-9, "random": 1e-9,
		"wrr": 1e-9, "rr": 1e-9, "sh": 1. / 256, "sh+port": 1. / 256, "mh": 0.05} {
		p := &servicemodel.Pool{Scheduler: by}
		sum, total := 0., 0.
		for i := range 11 {
			w := uint16(1 + i%4)
			total += float64(w)
			p.Slots = append(p.Slots, servicemodel.Slot{Weight: w,
				Endpoint: netip.AddrPortFrom(arenaEndpoint(i), 80)})
		}

		for i, share := range Shares(p) {
			want := float64(p.Slots[i].Weight) / total
			if by == "rr" {
				want = 1. / 11
			}
			require.InEpsilon(t, want, share, epsilon, by)
			sum += share
		}

		require.InDelta(t, 1, sum, 1e-9, by)
	}

	require.Equal(t, []float64{1}, levelShares(consecutive(1)))

	// Three slots: a client that draws the missing fourth one eight times gets slot 0 or 1.
	three := levelShares(consecutive(3))
	require.InDeltaSlice(t, []float64{(1 - three[2]) / 2, (1 - three[2]) / 2,
		1. / 3 * (1 - math.Pow(0.25, 8))}, three, 1e-12)
}
