package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Draining starts over when the weight of a destination becomes 0 again.
func TestDrainingBeginsAnew(t *testing.T) {
	t.Parallel()
	k := ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.10:80"))
	dest := ipvsnl.DestinationKey{Addr: netip.MustParseAddr("10.244.1.1"), Port: 8080}
	start := time.Now()
	d := draining{}
	for i, step := range []struct {
		weight uint32
		since  int // the step in which draining began; -1: it does not drain
	}{{0, 0}, {0, 0}, {1, -1}, {0, 3}} {
		d.note(k, &server{dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{
			dest: {DestinationKey: dest, Weight: step.weight}}}, start.Add(time.Duration(i)))
		since, drains := d[drainKey{k, dest}]
		require.Equal(t, step.since >= 0, drains, i)
		if drains {
			require.Equal(t, start.Add(time.Duration(step.since)), since, i)
		}
	}
}

// A destination is deleted once it has drained for the limit, or no longer has connections.
func TestWhatHasDrained(t *testing.T) {
	t.Parallel()
	k := ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.10:80"))
	const limit = time.Minute
	now := time.Now()
	at := sm.FrontendKey{Addr: k.Addr, Port: 80, Protocol: sm.TCP}
	for _, c := range []struct {
		name             string
		ours             bool
		weight           uint32
		active, inactive uint32
		since            time.Duration
		drained          bool
	}{
		{"no connections", true, 0, 0, 0, 0, true},
		{"active ones", true, 0, 1, 0, limit - 1, false},
		{"inactive ones", true, 0, 0, 1, limit - 1, false},
		{"for long enough", true, 0, 1, 1, limit, true},
		{"of somebody else", false, 0, 0, 0, limit, false},
		{"came back", true, 1, 0, 0, limit, false},
	} {
		dest := ipvsnl.ObservedDestination{ActiveConns: c.active, InactiveConns: c.inactive}
		dest.Addr, dest.Port, dest.Weight = netip.MustParseAddr("10.244.1.1"), 8080, c.weight
		d := draining{}
		if c.ours {
			d[drainKey{k, dest.DestinationKey}] = now.Add(-c.since)
		}
		l, said := d.drained(k, &at, []ipvsnl.ObservedDestination{dest}, limit, now)
		if !c.drained {
			require.Empty(t, l, c.name)
			require.Empty(t, said, c.name)
			continue
		}

		require.Equal(t, []ipvsnl.Op{ipvsnl.DelDestination(k, dest.DestinationKey)}, l, c.name)
		require.Equal(t, []backends.Drained{{
			Frontend: at,
			Endpoint: netip.AddrPortFrom(dest.Addr, 8080),
			Deadline: c.active+c.inactive > 0,
		}}, said, c.name)
	}
}

// Settle does not query virtual servers that were removed, or whose destinations came back or were
// deleted.
func TestWhichServersAreAskedFor(t *testing.T) {
	t.Parallel()
	key := func(port uint16) ipvsnl.ServiceKey {
		return ipvsnl.AddressService(ipvsnl.TCP,
			netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), port))
	}

	dest := ipvsnl.DestinationKey{Addr: netip.MustParseAddr("10.244.1.1"), Port: 8080}
	with := func(weight uint32) *server {
		return &server{dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{
			dest: {DestinationKey: dest, Weight: weight}}}
	}

	o := newObserved()
	o.servers = map[ipvsnl.ServiceKey]*server{key(1): with(0), key(2): with(1), key(4): with(0)}
	d := draining{}
	for _, port := range []uint16{4, 3, 2, 1} {
		d[drainKey{key(port), dest}] = time.Now()
	}
	require.Equal(t, []ipvsnl.ServiceKey{key(1), key(4)}, d.servers(&o))
	require.Len(t, d, 2)
}
