package iptables

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// chooser chooses the slot of a pool for a client.
type chooser struct {
	t     *testing.T
	pool  *sm.Pool
	rules []*bpf.VM // the programs of the slots, nil for the first slot
}

func newChooser(t *testing.T, f sm.Family, p *sm.Pool) *chooser {
	c := &chooser{t: t, pool: p}
	for _, m := range slotShares(p) {
		if m.kind == statNone {
			c.rules = append(c.rules, nil)
			continue
		}

		require.Equal(t, statHash, m.kind)
		l, all := bpf.Disassemble(hashProgram(f, m))
		require.True(t, all)
		require.LessOrEqual(t, len(l), 64, "XT_BPF_MAX_NUM_INSTR")
		vm := ok(bpf.NewVM(l))(t)
		c.rules = append(c.rules, vm)
	}

	return c
}

func (c *chooser) slot(client netip.AddrPort) int {
	slot := c.matched(client)
	choose := Chooser(c.pool)
	require.NotNil(c.t, choose)
	require.Equal(c.t, slot, choose(client))
	return slot
}

// matched runs the programs.
func (c *chooser) matched(client netip.AddrPort) int {
	packet := make([]byte, 48)
	if a := client.Addr(); a.Is4() {
		packet[0] = 0x46 // with one option
		copy(packet[12:], a.AsSlice())
		binary.BigEndian.PutUint16(packet[24:], client.Port())
	} else {
		packet[0] = 0x60
		copy(packet[8:], a.AsSlice())
		binary.BigEndian.PutUint16(packet[40:], client.Port())
	}

	for i := len(c.rules) - 1; i > 0; i-- {
		n := ok(c.rules[i].Run(packet))(c.t)
		if n > 0 {
			return i
		}
	}

	return 0
}

// hashed returns a pool whose slots have these weights.
func hashed(s sm.Scheduler, weights ...uint16) *sm.Pool {
	p := &sm.Pool{Scheduler: s}
	for _, w := range weights {
		p.Slots = append(p.Slots, sm.Slot{Weight: w})
	}
	return p
}

// clientsOf returns neighbouring addresses, as clients have them, or ports of one address.
func clientsOf(f sm.Family, port bool, n int) []netip.AddrPort {
	a := netip.MustParseAddr("10.1.0.0")
	if f == sm.IPv6 {
		a = netip.MustParseAddr("2001:db8::")
	}
	l := make([]netip.AddrPort, n)
	for i := range l {
		l[i] = netip.AddrPortFrom(a, uint16(1024+i))
		if !port {
			a = a.Next()
		}
	}

	return l
}

// Each slot gets its share of neighbouring clients, up to the chi-squared value that one of a
// million fair choices exceeds.
func TestHashSharesClientsByWeight(t *testing.T) {
	t.Parallel()
	const n = 20000
	for _, weights := range [][]uint16{{1, 1}, {1, 1, 1}, {5, 1}, {1, 2, 3, 4},
		slices.Repeat([]uint16{1}, 10), slices.Repeat([]uint16{1, 9}, 8)} {
		for _, f := range []sm.Family{sm.IPv4, sm.IPv6} {
			for _, s := range []sm.Scheduler{"sh", "sh+port"} {
				c := newChooser(t, f, hashed(s, weights...))
				counts := make([]int, len(weights))
				for _, client := range clientsOf(f, s != "sh", n) {
					counts[c.slot(client)]++
				}
				sum, chi := 0, 0.0
				for _, w := range weights {
					sum += int(w)
				}
				for i, w := range weights {
					want := n * float64(w) / float64(sum)
					chi += (float64(counts[i]) - want) * (float64(counts[i]) - want) / want
				}

				// Wilson and Hilferty's approximation; 4.75 is the quantile of 1 - 10^-6.
				k := float64(len(weights) - 1)
				limit := k * math.Pow(1-2/(9*k)+4.75*math.Sqrt(2/(9*k)), 3)
				require.Less(t, chi, limit, "%v %s %v: %v", f, s, weights, counts)
			}
		}
	}
}

// An added endpoint takes its share from all others. No other client moves. A single endpoint has
// all clients.
func TestANewEndpointTakesOnlyItsShareOfTheHash(t *testing.T) {
	t.Parallel()
	clients := clientsOf(sm.IPv4, false, 5000)
	for n := 1; n < 20; n++ {
		before := newChooser(t, sm.IPv4, hashed("sh", slices.Repeat([]uint16{1}, n)...))
		after := newChooser(t, sm.IPv4, hashed("sh", slices.Repeat([]uint16{1}, n+1)...))
		moved := 0
		for _, c := range clients {
			if was, is := before.slot(c), after.slot(c); was != is {
				require.Equal(t, n, is)
				moved++
			}
		}

		share := float64(len(clients)) / float64(n+1)
		require.InDelta(t, share, float64(moved), 5*math.Sqrt(share))
	}
}

// With sh, a client keeps its endpoint whatever its port. With sh+port, the port matters.
func TestHashOfThePort(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range []sm.Family{sm.IPv4, sm.IPv6} {
		one := newChooser(t, f, hashed("sh", 1, 1, 1, 1, 1))
		each := newChooser(t, f, hashed("sh+port", 1, 1, 1, 1, 1))
		seen, addr := map[int]bool{}, clientsOf(f, false, 1)[0].Addr()
		for range 100 {
			c := netip.AddrPortFrom(addr, uint16(rng.Uint32()))
			require.Equal(t, one.slot(netip.AddrPortFrom(addr, 1)), one.slot(c))
			seen[each.slot(c)] = true
		}

		require.Len(t, seen, 5)
	}
}

func TestSharesFollowTheRules(t *testing.T) {
	t.Parallel()
	for _, by := range []sm.Scheduler{"", "random", "rr", "sh", "sh+port"} {
		p := &sm.Pool{Scheduler: by, Slots: []sm.Slot{{Weight: 1}, {Weight: 5}, {Weight: 2}}}
		want := []float64{1. / 8, 5. / 8, 2. / 8}
		if by == sm.RoundRobin {
			want = []float64{1. / 3, 1. / 3, 1. / 3}
		}
		require.InDeltaSlice(t, want, Shares(p), 1e-9, by)
	}
}
