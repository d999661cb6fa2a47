package nftables_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// hashing is a changing service whose scheduler hashes clients.
type hashing struct {
	service   sm.Service
	endpoints []sm.Endpoint
	table     *sm.Table
	now       time.Time
}

var hashingPort = sm.PortName{Name: sm.Name{Namespace: "default", Name: "web"}, Protocol: sm.TCP}

// newHashing returns a service with n endpoints of random weights, half of them on this node.
func newHashing(r *rand.Rand, s sm.Scheduler, prefer string, n int, greatest uint) *hashing {
	h := &hashing{service: sm.Service{Name: hashingPort.Name, Scheduler: s, Prefer: prefer,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}}
	for range n {
		h.add(uint16(1 + r.UintN(greatest)))
	}
	return h
}

func (h *hashing) add(weight uint16) {
	n := len(h.endpoints)
	last := netip.MustParseAddr("10.244.0.0")
	if n > 0 {
		last = h.endpoints[n-1].Addr
	}
	h.endpoints = append(h.endpoints, sm.Endpoint{Addr: last.Next(),
		Node: []string{"here", "there"}[n%2], Weight: weight,
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}})
}

// resolve returns the pool after the changes.
func (h *hashing) resolve(t *testing.T) *sm.Pool {
	t.Helper()
	table, err := sm.Resolve(h.table, sm.State{}.WithNode(sm.Node{Name: "here"}).
		WithService(&h.service).WithEndpoints(hashingPort.Name, h.endpoints))
	require.NoError(t, err)
	table = table.At(func() time.Time { return h.now }, h.table)
	h.table = table
	p := table.Pool(sm.PoolID{Service: hashingPort, Family: sm.IPv4})
	_, err = sm.NewTable(sm.Contents{Pools: []*sm.Pool{p}}) // checks the units
	require.NoError(t, err)
	return p
}

// change changes one endpoint, and returns the kind of change. With a slow start, it also takes
// steps.
func (h *hashing) change(r *rand.Rand) string {
	if h.service.SlowStart > 0 && r.IntN(3) > 0 {
		h.now = h.now.Add(time.Duration(500+r.IntN(4000)) * time.Millisecond)
		return "grows"
	}

	i := r.IntN(len(h.endpoints))
	e := &h.endpoints[i]
	switch k := r.IntN(5); {
	case k == 0:
		e.Weight++
		return "heavier"
	case k == 1 && e.Weight > 1:
		e.Weight--
		return "lighter"
	case k == 2 && e.Condition == sm.NotReady:
		e.Condition = sm.Ready
		return "recovers"
	case k == 3:
		e.Condition = sm.NotReady
		return "fails"
	case k == 4:
		h.add(e.Weight)
		return "joins"
	}

	h.endpoints = append(h.endpoints[:i:i], h.endpoints[i+1:]...)
	return "leaves"
}

type moves struct{ moved, least, iptables float64 }

// choices returns the endpoint of each client, and the number of clients of each endpoint.
func choices(p *sm.Pool, choose func(netip.AddrPort) int, clients int) ([]netip.AddrPort,
	map[netip.AddrPort]float64) {
	l, shares, a := make([]netip.AddrPort, clients), map[netip.AddrPort]float64{},
		netip.MustParseAddr("10.1.0.0")
	for i := range l {
		a = a.Next()
		l[i] = p.Slots[choose(netip.AddrPortFrom(a, 1))].Endpoint
	}

	total := 0.
	for _, s := range p.Slots {
		total += float64(s.Weight)
	}
	for _, s := range p.Slots {
		shares[s.Endpoint] = float64(s.Weight) / total
	}
	return l, shares
}

// moved returns the share of the clients that move between pools, and the minimum share that the
// weights require.
func moved(chooser func(*sm.Pool) func(netip.AddrPort) int, a, b *sm.Pool) (moved, least float64) {
	const clients = 4000
	was, had := choices(a, chooser(a), clients)
	is, has := choices(b, chooser(b), clients)
	for i := range was {
		if was[i] != is[i] {
			moved += 1. / clients
		}
	}

	for ep, share := range had {
		least += max(0, share-has[ep])
	}
	return moved, least
}

// Only pools that hash clients, and have endpoints, have a chooser.
func TestWhichPoolsHaveAChooser(t *testing.T) {
	t.Parallel()
	for _, by := range []sm.Scheduler{"", "random", "rr", "sh", "sh+port", "mh", "mh+port"} {
		for n := range 3 {
			p := &sm.Pool{Scheduler: by, Slots: make([]sm.Slot, n)}
			for i := range p.Slots {
				p.Slots[i].Weight = 1
			}
			hashes := n > 0 && strings.Contains(string(by), "h")
			require.Equal(t, hashes, nftables.Chooser(p) != nil, "%s, %d endpoints", by, n)
			require.Equal(t, hashes && strings.HasPrefix(string(by), "sh"),
				iptables.Chooser(p) != nil, "%s, %d endpoints", by, n)
		}
	}
}

// One change of a random pool moves few more clients than necessary: sh on nftables moves on
// average at most twice as many clients as necessary, and at most as many as on iptables. The same
// holds for each step of a slow start. Each sequence begins with a pool that was resolved without a
// predecessor. The pools of mh keep the size of their tables.
func TestOneChangeMovesFewClients(t *testing.T) {
	t.Parallel()
	const seed, pools, steps, slow = 31, 15, 8, 20 * time.Second
	for _, tc := range []struct {
		scheduler sm.Scheduler
		prefer    string
		greatest  uint
		slowStart time.Duration
	}{{"sh", "", 1, 0}, {"sh", "", 10, 0}, {"sh", "", 100, 0}, {"sh", "node", 1, 0},
		{"sh", "", 1, slow}, {"sh", "", 10, slow}, {"sh", "node", 1, slow}, {"mh", "", 1, 0},
		{"mh", "", 10, 0}, {"mh", "", 100, 0}, {"mh", "node", 1, 0}, {"mh", "", 1, slow}} {
		t.Run(fmt.Sprint(tc.scheduler, tc.prefer, tc.greatest, tc.slowStart), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			sum, count := map[string]*moves{}, map[string]float64{}
			for range pools {
				h := newHashing(r, tc.scheduler, tc.prefer, 30+r.IntN(4), tc.greatest)
				h.service.SlowStart, h.now = tc.slowStart, time.Unix(1, 0)
				before := h.resolve(t)
				for range steps + 2*steps*int(tc.slowStart/slow) {
					what := h.change(r)
					after := h.resolve(t)
					m, least := moved(nftables.Chooser, before, after)
					if sum[what] == nil {
						sum[what] = &moves{}
					}
					count[what]++
					sum[what].moved += m
					sum[what].least += least
					if tc.scheduler == "sh" {
						m, _ = moved(iptables.Chooser, before, after)
						sum[what].iptables += m
					}

					before = after
				}
			}

			for what, m := range sum {
				n := count[what]
				t.Logf("%s %s weights 1 to %d, %s: moved %.2f %%, least %.2f %%, iptables %.2f %%",
					tc.scheduler, tc.prefer, tc.greatest, what, 100*m.moved/n, 100*m.least/n,
					100*m.iptables/n)
				if tc.scheduler == "mh" {
					require.Less(t, (m.moved-m.least)/n, 0.04, what)
					continue
				}

				if tc.prefer != "" && tc.slowStart > 0 && what == "joins" {
					// The other endpoints make room for the whole weight at once.
					require.Less(t, m.moved/n, .04, what)
					continue
				}

				require.Less(t, m.moved/n, 2*m.least/n+.005, what)
				require.Less(t, m.moved/n, m.iptables/n+.005, what)
			}
		})
	}
}
