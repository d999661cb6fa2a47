package proxy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// slots returns a pool of endpoints with those weights, whose ports are their numbers.
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
func turns(p pool, n int) (all string) {
	for range n {
		all += fmt.Sprint(p.pick(nil).endpoint.Port())
	}
	return all
}

func TestTurns(t *testing.T) {
	t.Parallel()
	const weighted = "11213111121311"
	for by, want := range map[servicemodel.Scheduler]string{servicemodel.WeightedRR: weighted,
		servicemodel.RoundRobin: "12312312312312", servicemodel.SchedulerDefault: weighted} {
		require.Equal(t, want, turns(pool(nil).updated(slots(by, 5, 1, 1)), 14), by)
	}
	p := pool(nil).updated(slots("", 5, 1, 1))
	require.Equal(t, "112", turns(p, 3))
	p = p.updated(slots("", 5, 0, 1))
	require.Equal(t, "113111", turns(p, 6), "those that stay keep their turns")
	require.Nil(t, p.find(numbered(2)))
}

func TestNobodyIsAskedTwice(t *testing.T) {
	t.Parallel()
	p, tried := pool(nil).updated(slots("", 1, 2, 3)), []netip.AddrPort(nil)
	for range 3 {
		x := p.pick(tried)
		require.NotContains(t, tried, x.endpoint)
		tried = append(tried, x.endpoint)
	}
	require.Nil(t, p.pick(tried))
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
