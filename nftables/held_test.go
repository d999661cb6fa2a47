package nftables

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// unitsState has two services of both families: a plain service, and a service with a frontend of
// each kind, whose outside clients have different endpoints.
func unitsState() servicemodel.State {
	both := func(s *servicemodel.Service, four, six string) {
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr(four), netip.MustParseAddr(six)}
	}
	web := goldenService(func(s *servicemodel.Service) {
		both(s, "10.96.0.10", "fd00:10:96::10")
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.10")},
			{Addr: netip.MustParseAddr("2001:db8::10")}}
		s.LoadBalancerSourceRanges = prefixes("198.51.100.0/24", "192.0.2.128/25",
			"2001:db8:5::/48")
		s.ExternalTrafficPolicy = servicemodel.PolicyLocal
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: 60e9}
	})
	db := goldenService(func(s *servicemodel.Service) {
		s.Name.Name = "db"
		s.Ports[0].NodePort = 0
		both(s, "10.96.0.20", "fd00:10:96::20")
	})
	here := goldenEndpoints("10.244.1.1", "10.244.1.2", "fd00:10:244::1", "fd00:10:244::2")
	there := goldenEndpoints("10.244.2.1", "fd00:10:244:2::1")
	for i := range there {
		there[i].Node = "other"
	}
	return servicemodel.State{}.WithNode(goldenNode()).WithService(web).WithService(db).
		WithEndpoints(web.Name, append(here, there...)).
		WithEndpoints(db.Name, goldenEndpoints("10.244.3.1", "10.244.3.2", "fd00:10:244:3::1"))
}

// tcpKey is the key of a frontend of TCP.
func tcpKey(at string) servicemodel.FrontendKey {
	a := netip.MustParseAddrPort(at)
	return servicemodel.FrontendKey{Addr: a.Addr(), Protocol: servicemodel.TCP, Port: a.Port()}
}

// held is a table and its elements in the kernel.
type held struct {
	t     *testing.T
	table *servicemodel.Table
	*memory
}

func holding(t *testing.T, s servicemodel.State) *held {
	t.Helper()
	m := &memory{t: t}
	table, _ := newMemoryBackend(m).apply(nil, s)
	return &held{t, table, m}
}

// elements calls fn with each held element of a frontend.
func (h *held) elements(i int, fn func(set, key string, e *nft.Elem)) {
	for _, set := range slices.Sorted(maps.Keys(h.tables[i].Elems)) {
		if !read.IsRead(set) || set == form.SetClusterIPs || set == form.SetHairpins {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(h.tables[i].Elems[set])) {
			fn(set, key, h.tables[i].Elems[set][key])
		}
	}
}

var (
	podOne = netip.MustParseAddrPort("10.244.1.1:8080")
	podTwo = netip.MustParseAddrPort("10.244.1.2:8080")
)
