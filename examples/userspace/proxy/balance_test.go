package proxy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// poolOf returns a pool of endpoints with those weights, whose ports are their numbers.
func poolOf(by servicemodel.Scheduler, weights ...uint16) *pool {
	p := &pool{}
	p.update(slots(by, weights...))
	return p
}

func slots(by servicemodel.Scheduler, weights ...uint16) *servicemodel.Pool {
	p := &servicemodel.Pool{Scheduler: by}
	for i, w := range weights {
		if w > 0 {
			p.Slots = append(p.Slots, servicemodel.Slot{Endpoint: numbered(i + 1), Weight: w})
		}
	}
	return p
}

func numbered(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.244.0.1"), uint16(n))
}

func clientNumber(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 1000)
}

// turns returns who gets n connections, which stay open.
func turns(p *pool, n int) (all string) {
	for i := range n {
		t := p.pick(clientNumber(i), nil)
		t.conns++
		all += fmt.Sprint(t.endpoint.Port())
	}
	return all
}

func TestTurns(t *testing.T) {
	t.Parallel()
	require.Equal(t, "123123", turns(poolOf(servicemodel.RoundRobin, 5, 1, 1), 6))
	require.Equal(t, "11213111121311", turns(poolOf(servicemodel.WeightedRR, 5, 1, 1), 14))
	require.Equal(t, "1121311", turns(poolOf(servicemodel.SchedulerDefault, 5, 1, 1), 7))
}

func TestTheFewestConnections(t *testing.T) {
	t.Parallel()
	p := poolOf(servicemodel.LeastConn, 1, 1, 1)
	require.Len(t, turns(p, 9), 9)
	for _, x := range p.targets {
		require.Equal(t, 3, x.conns)
	}
	p.targets[1].conns = 1
	require.Equal(t, "22", turns(p, 2))
	weighted := poolOf(servicemodel.WeightedLC, 4, 1)
	turns(weighted, 50)
	require.Equal(t, 40, weighted.targets[0].conns)
}

func TestShares(t *testing.T) {
	t.Parallel()
	for _, by := range []servicemodel.Scheduler{servicemodel.Random, servicemodel.SourceHash,
		servicemodel.Maglev + servicemodel.HashFallback} {
		p := poolOf(by, 1, 2, 7)
		const n = 20000
		turns(p, n)
		for i, weight := range []float64{1, 2, 7} {
			// six standard deviations of a binomial distribution
			off := float64(p.targets[i].conns) - weight*n/10
			require.Less(t, off*off, 36*weight*n/10*(1-weight/10), "%s %d", by, i)
		}
	}
}

// Clients of endpoints that stay are not moved, and those of one that leaves are spread.
func TestHashesAreConsistent(t *testing.T) {
	t.Parallel()
	before := poolOf(servicemodel.SourceHash, 1, 1, 1)
	after := poolOf(servicemodel.SourceHash, 1, 0, 1)
	moved := map[uint16]int{}
	for n := range 3000 {
		client := clientNumber(n)
		was, is := before.pick(client, nil).endpoint, after.pick(client, nil).endpoint
		if was != is {
			require.Equal(t, uint16(2), was.Port())
			moved[is.Port()]++
		}
		require.Equal(t, was, before.pick(netip.AddrPortFrom(client.Addr(), 7), nil).endpoint)
	}
	require.InDelta(t, moved[1], moved[3], 200)
	p, spread := poolOf(servicemodel.SourceHash+servicemodel.HashPort, 1, 1), map[uint16]bool{}
	for port := range uint16(64) {
		spread[p.pick(netip.AddrPortFrom(clientNumber(1).Addr(), port), nil).endpoint.Port()] = true
	}
	require.Len(t, spread, 2)
}

func TestNobodyIsAskedTwice(t *testing.T) {
	t.Parallel()
	for _, by := range schedulers {
		p, tried := poolOf(by, 1, 2, 3), []netip.AddrPort(nil)
		for range 3 {
			x := p.pick(clientNumber(1), tried)
			require.NotContains(t, tried, x.endpoint, "%s", by)
			tried = append(tried, x.endpoint)
		}
		require.Nil(t, p.pick(clientNumber(1), tried), "%s", by)
	}
}

// The connections of an endpoint count, though it left for a while.
func TestWhatIsCountedStays(t *testing.T) {
	t.Parallel()
	p := poolOf(servicemodel.LeastConn, 1, 1, 1)
	turns(p, 9)
	one, two := p.targets[0], p.targets[1]
	p.targets[2].conns = 0
	p.update(slots(servicemodel.LeastConn, 1))
	require.Equal(t, []*target{one}, p.targets)
	require.Equal(t, []*target{two}, p.left, "who has no connections is forgotten")
	p.update(slots(servicemodel.LeastConn, 1, 1, 1))
	require.Same(t, two, p.targets[1])
	require.Empty(t, p.left)
	require.Equal(t, two, p.find(two.endpoint))
	require.Nil(t, p.find(numbered(9)))
}

func TestClientsAreRemembered(t *testing.T) {
	t.Parallel()
	var c clients
	c.init(2)
	who := func(n int) client { return client{addr: clientNumber(n).Addr()} }
	start := time.Now()
	later := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	known := func(n, now int) bool {
		e, ok := c.recall(who(n), 10*time.Second, later(now))
		require.True(t, !ok || e == numbered(n))
		return ok
	}
	c.remember(who(1), numbered(1), later(0))
	c.remember(who(2), numbered(2), later(1))
	require.True(t, known(1, 9))
	require.False(t, known(1, 10))
	c.remember(who(1), numbered(1), later(8)) // used again
	require.True(t, known(1, 17))
	c.remember(who(3), numbered(3), later(9))
	require.False(t, known(2, 9), "who was not seen for longest makes room")
	require.True(t, known(1, 9) && known(3, 9))
	c.forget(who(3))
	c.forget(who(3))
	require.False(t, known(3, 9))
}

func TestMapping(t *testing.T) {
	t.Parallel()
	var m Mapping
	for _, s := range []string{"10.96.0.10:80=127.0.0.1:8080", "10.96.0.10=127.0.0.2",
		"[fd00::a]:80=[::1]:8080", "10.96.0.0/12=none", "10.244.0.0/16=127.0.0.1"} {
		r, err := ParseRule(s)
		require.NoError(t, err)
		require.Equal(t, s, r.String())
		m = append(m, r)
	}
	for from, want := range map[string]string{"10.96.0.10:80": "127.0.0.1:8080",
		"10.96.0.10:443": "127.0.0.2:443", "[fd00::a]:80": "[::1]:8080",
		"[fd00::a]:81": "[fd00::a]:81", "10.96.0.11:80": "", "10.244.7.7:9": "127.0.0.1:9",
		"192.0.2.1:80": "192.0.2.1:80"} {
		at, ok := m.At(netip.MustParseAddrPort(from))
		require.Equal(t, want != "", ok, from)
		if ok {
			require.Equal(t, want, at.String())
		}
	}
	const asRange = ": must be an address, an address and a port, or a range"
	const asTarget = ": must be an address, an address and a port, or none"
	for s, want := range map[string]string{
		"10.96.0.10":           "must be ADDRESS=ADDRESS",
		"10.96.0.300=none":     "10.96.0.300" + asRange,
		"10.96.0.0/33=none":    "10.96.0.0/33" + asRange,
		"10.96.0.1:0=none":     "10.96.0.1:0" + asRange,
		"10.96.0.1=localhost":  "localhost" + asTarget,
		"10.96.0.1=10.0.0.0/8": "10.0.0.0/8" + asTarget,
	} {
		_, err := ParseRule(s)
		require.EqualError(t, err, want)
	}
}

func FuzzParseRule(f *testing.F) {
	f.Add("10.96.0.10:80=127.0.0.1:8080")
	f.Add("[fd00::a]:80=none")
	f.Add("10.244.0.0/16=::1")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func TestConfigurationsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := New(&Config{UDPTimeout: -1})
	require.EqualError(t, err, "proxy configuration: UDPTimeout: -1ns: must not be negative")
	_, err = New(&Config{MaxFlows: -1})
	require.EqualError(t, err, "proxy configuration: MaxFlows: -1: must not be negative")
	c, err := (*Config)(nil).filled()
	require.NoError(t, err)
	require.Equal(t, DefaultAttempts, c.Attempts)
}
