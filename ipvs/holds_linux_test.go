package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Only a full comparison, over generic netlink, reveals an edit by hand of a virtual server of
// IPv6. It compares each field, and each destination.
func TestVirtualServersOfIPv6AreComparedInFull(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	var s *server
	for k, is := range o.b.pl.have.servers {
		if k.Family == ipvsnl.FamilyIPv6 {
			s = is
		}
	}

	require.NotNil(t, s)
	k := s.svc.ServiceKey
	key := ipvsnl.DestinationKey{Addr: netip.MustParseAddr("fd00::9"), Port: 80}
	dest := ipvsnl.Destination{DestinationKey: key, Weight: 1}
	other := dest
	other.Port++
	s.dests = map[ipvsnl.DestinationKey]ipvsnl.Destination{key: dest}
	before := s.svc
	edited := func(edit func(*ipvsnl.Service)) ipvsnl.Op {
		svc := before
		edit(&svc)
		return ipvsnl.SetService(svc)
	}

	weighed := dest
	weighed.Weight++
	holds := func(want bool, what string) {
		t.Helper()
		require.Equal(t, want, ok(o.b.kernel.holds(t.Context(), s))(t), what)
	}

	holds(false, "no destination")
	o.submit(ipvsnl.NewDestination(k, dest))
	holds(true, "as it was")
	for what, ops := range map[string][2]ipvsnl.Op{
		"scheduler": {edited(func(svc *ipvsnl.Service) { svc.Scheduler = "lc" })},
		"flags":     {edited(func(svc *ipvsnl.Service) { svc.Flags ^= ipvsnl.FlagPersistent })},
		"timeout":   {edited(func(svc *ipvsnl.Service) { svc.Timeout += time.Second })},
		"weight":    {ipvsnl.SetDestination(k, weighed), ipvsnl.SetDestination(k, dest)},
		"one more": {ipvsnl.NewDestination(k, other),
			ipvsnl.DelDestination(k, other.DestinationKey)},
	} {
		o.submit(ops[0])
		holds(false, what)
		if ops[1].Command == 0 {
			ops[1] = ipvsnl.SetService(before)
		}
		o.submit(ops[1])
		holds(true, what)
	}

	o.submit(ipvsnl.NewDestination(k, other))
	o.submit(ipvsnl.DelDestination(k, key))
	holds(false, "another destination")
	o.submit(ipvsnl.DelService(k))
	holds(false, "no virtual server")
}
