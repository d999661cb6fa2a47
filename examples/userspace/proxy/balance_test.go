package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// slots returns a pool of endpoints with these weights. The port of each endpoint is its number.
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

// turns returns the endpoints of n connections.
func turns(p *pool, n int) (all string) {
	for range n {
		all += fmt.Sprint(p.pick(clientAt(1), nil).endpoint.Port())
	}
	return all
}

func TestTurns(t *testing.T) {
	t.Parallel()
	const weighted = "11213111121311"
	for by, want := range map[servicemodel.Scheduler]string{servicemodel.WeightedRR: weighted,
		servicemodel.RoundRobin: "12312312312312", servicemodel.SchedulerDefault: weighted} {
		require.Equal(t, want, turns((*pool)(nil).updated(slots(by, 5, 1, 1)), 14), by)
	}

	p := (*pool)(nil).updated(slots("", 5, 1, 1))
	require.Equal(t, "112", turns(p, 3))
	p = p.updated(slots("", 5, 0, 1))
	require.Equal(t, "113111", turns(p, 6), "those that stay keep their turns")
	require.Nil(t, p.find(numbered(2)))

	p = (*pool)(nil).updated(slots(servicemodel.Random, 1, 1, 1))
	turns(p, 1000)
	require.Equal(t, "123123", turns(p.updated(slots(servicemodel.RoundRobin, 1, 1, 1)), 6))
}

// clientAt is one of many clients.
func clientAt(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), uint16(n))
}

// The schedulers that count open connections choose among endpoints with 4, 1 and 0 connections.
func TestOpenConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	for by, want := range map[servicemodel.Scheduler]string{
		servicemodel.LeastConn: "323232", servicemodel.WeightedLC: "321231",
		servicemodel.ShortestDelay: "231121", servicemodel.NeverQueue: "321121",
		servicemodel.Failover: "111111", servicemodel.Overflow: "231231",
	} {
		p := (*pool)(nil).updated(slots(by, 4, 2, 1))
		p.targets[0].conns, p.targets[1].conns, p.targets[2].conns = 4, 1, 0
		got := ""
		for range 6 {
			x := p.pick(clientAt(1), nil)
			x.conns++
			got += fmt.Sprint(x.endpoint.Port())
		}

		require.Equal(t, want, got, by)
	}

	p := (*pool)(nil).updated(slots(servicemodel.NeverQueue, 20, 1))
	p.targets[0].conns = 1
	require.Equal(t, "2", turns(p, 1), "an idle endpoint is asked before others")
	p = (*pool)(nil).updated(slots(servicemodel.Overflow, 3, 2))
	p.targets[0].conns = 3
	require.Equal(t, "2", turns(p, 1), "the first one is full")
}

// requireShares requires that endpoints get connections by their weights, up to the chi-squared
// value that one of a million fair choices exceeds (two degrees of freedom).
func requireShares(t *testing.T, p *pool, n int) {
	t.Helper()
	counts, sum, chi := map[*target]float64{}, 0., 0.
	for i := range n {
		counts[p.pick(clientAt(i), nil)]++
	}
	for _, x := range p.targets {
		sum += x.weight
	}
	for _, x := range p.targets {
		want := float64(n) * x.weight / sum
		chi += (counts[x] - want) * (counts[x] - want) / want
	}

	require.Less(t, chi, 27.6, "%v", counts)
}

func TestSharesByWeight(t *testing.T) {
	t.Parallel()
	for _, by := range []servicemodel.Scheduler{servicemodel.Random, "sh", "sh+port", "mh",
		"mh+port+fallback"} {
		requireShares(t, (*pool)(nil).updated(slots(by, 3, 1, 2)), 10000)
	}
}

// Only clients of the removed endpoint get a new endpoint, and they are spread over all endpoints.
func TestAHashMovesNobodyElse(t *testing.T) {
	t.Parallel()
	for _, by := range []servicemodel.Scheduler{"sh", "mh+port"} {
		all := (*pool)(nil).updated(slots(by, 1, 2, 1, 1))
		less := all.updated(slots(by, 1, 0, 1, 1))
		got := map[uint16]int{}
		for i := range 2000 {
			was, is := all.pick(clientAt(i), nil), less.pick(clientAt(i), nil)
			if was.endpoint != numbered(2) {
				require.Equal(t, was, is)
				continue
			}

			got[is.endpoint.Port()]++
		}

		require.Len(t, got, 3)
	}
}

func TestHashOfThePort(t *testing.T) {
	t.Parallel()
	for by, want := range map[servicemodel.Scheduler]int{"sh": 1, "sh+port": 3} {
		p, got := (*pool)(nil).updated(slots(by, 1, 1, 1)), map[*target]bool{}
		for port := range uint16(100) {
			got[p.pick(netip.AddrPortFrom(clientAt(1).Addr(), port), nil)] = true
		}
		require.Len(t, got, want, by)
	}
}

func TestMapping(t *testing.T) {
	t.Parallel()
	var m Mapping
	for _, s := range []string{"10.96.0.10:80=127.0.0.1:8080", "10.96.0.10=127.0.0.2",
		"[fd00::a]:80=[::1]:8080", "10.96.0.0/12=none", "10.244.0.0/16=127.0.0.1"} {
		r, err := ParseRule(s)
		require.NoError(t, err)
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
	const asTarget = ": must be an address, an address and a port, or \"none\""
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
		if r, err := ParseRule(s); err == nil {
			at, ok := Mapping{r}.At(netip.AddrPortFrom(r.From.Addr(), max(r.FromPort, 1)))
			require.Equal(t, r.To.IsValid(), ok)
			require.Equal(t, r.To, at.Addr())
		}
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
	require.Equal(t, DefaultMaxFlows, c.MaxFlows)
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	parse := netip.MustParseAddrPort
	v4, v4to := parse("192.0.2.1:56324"), parse("10.96.0.10:443")
	v6, v6to := parse("[2001:db8::1]:258"), parse("[fd00::a]:80")
	const ip4, ip6 = "\xc0\x00\x02\x01\x0a\x60\x00\x0a\xdc\x04\x01\xbb",
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
			"\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0a\x01\x02\x00\x50"
	const begin = "\r\n\r\n\x00\r\nQUIT\n\x21"
	require.Equal(t, begin+"\x11\x00\x0c"+ip4, string(header(v4, v4to)))
	require.Equal(t, begin+"\x21\x00\x24"+ip6, string(header(v6, v6to)))
}
