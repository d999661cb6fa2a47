package ipvs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// rangeState has services with ranges at two addresses. Each service exists half of the time. Their
// ranges are nested, overlap, or are apart.
func rangeState(rng *rand.Rand) sm.State {
	s := sm.State{}.WithNode(goldenNode())
	for i := range 6 {
		if rng.IntN(2) == 0 {
			continue
		}
		first := 1000 + uint16(rng.IntN(60))
		port := sm.ServicePort{Protocol: []sm.Protocol{sm.TCP, sm.UDP}[i%2], Port: first,
			EndPort: first + 1 + uint16(rng.IntN(60))}
		if rng.IntN(8) == 0 {
			port.EndPort = 0
		}
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: fmt.Sprintf("s%d", i)},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"),
				netip.MustParseAddr("fd00:10:96::10")},
			LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: netip.MustParseAddr("203.0.113.10")}},
			Ports:           []sm.ServicePort{port}}
		for _, edit := range []func(*sm.Service){sticky, func(s *sm.Service) {
			s.ExternalTrafficPolicy = sm.PolicyLocal
		}, func(s *sm.Service) {
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}, givenSource} {
			if rng.IntN(2) == 0 {
				edit(svc)
			}
		}

		endpoints := goldenEndpoints("10.244.1.1", "10.244.2.2", "fd00:10:244::1")[rng.IntN(4):]
		for j := range endpoints {
			endpoints[j].Ports = []sm.EndpointPort{{Protocol: port.Protocol,
				Port: uint16(53 * rng.IntN(2))}}
			if port.EndPort == 0 {
				endpoints[j].Ports[0].Port = 53
			}
		}

		s = s.WithService(svc).WithEndpoints(svc.Name, endpoints)
	}

	return s
}

// After each change, another process finds the applied state, and each port reaches the range that
// the model selects, in both families.
func TestRangesInEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.state()
	e, rng := r.engine(), rand.New(rand.NewPCG(3, 14))
	for step := range 25 {
		table := r.apply(e, rangeState(rng)).Changes.New
		b := r.backend()
		observation(t, b)
		var raws [2]*rawTable
		for i, f := range nft.Families {
			raws[i] = ok(b.kernel.readTable(t.Context(), f))(t)
		}
		for _, addr := range []string{"10.96.0.10", "fd00:10:96::10", "203.0.113.10"} {
			a := netip.MustParseAddr(addr)
			raw := raws[nft.FamilyIndex(a)]
			_, known := raw.elems[setRangeAddresses][string(nft.AppendAddr(nil, a))]
			require.Equal(t, table.FirstRange(a) != nil, known, "step %d: %v", step, a)
			for port := uint16(990); port < 1130; port++ {
				for _, proto := range []sm.Protocol{sm.TCP, sm.UDP} {
					b.requireRange(t, raw, table,
						sm.FrontendKey{Addr: a, Protocol: proto, Port: port})
				}
			}
		}
	}

	cleanUp(t, e)
	require.Equal(t, before, r.state())
}

// requireRange looks a port up as packets do, and requires the first range of the table that
// contains the port.
func (b *backend) requireRange(t *testing.T, raw *rawTable, table *sm.Table, k sm.FrontendKey) {
	t.Helper()
	var want, got uint32
	if l := table.RangesAt(k.Addr, k.Protocol, k.Port); len(l) > 0 {
		want = b.pl.have.companion.records[l[0].Key].at.mark
	}
	for _, bits := range allBlocks.blockBits() {
		first := uint16(uint32(k.Port) >> (16 - bits) << (16 - bits))
		e, found := raw.elems[blockMap(bits)][string(nft.AppendBlock(nil, first, k))]
		if found {
			rd := nft.Reader{Bytes: e.Data}
			got = rd.Native()
			break
		}
	}

	require.Equal(t, want, got, k)
}

// oneRange returns a state of one service with a range.
func oneRange(edit ...func(*sm.Service)) sm.State {
	svc := goldenService(append([]func(*sm.Service){local, func(s *sm.Service) {
		s.Ports = []sm.ServicePort{{Protocol: sm.TCP, Port: 1000, EndPort: 1999}}
	}}, edit...)...)
	eps := goldenEndpoints("10.244.1.1", "10.244.2.2")
	for i := range eps {
		eps[i].Ports = []sm.EndpointPort{{Protocol: sm.TCP}}
	}
	return sm.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name, eps)
}

// Edits by hand of the objects of a range are noticed and repaired.
func TestDamageOfARangeIsRepaired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.engine()
	r.apply(e, oneRange(givenSource))
	want := r.state()
	repaired := func(what string) {
		t.Helper()
		require.NotEqual(t, want, r.state(), what)
		require.Positive(t, r.apply(r.engine(), oneRange(givenSource)).Stats.Messages, what)
		require.Equal(t, want, r.state(), what)
	}

	for _, damage := range []string{
		"nft flush map ip kernlb-ipvs range-blocks-13",
		"nft flush map ip kernlb-ipvs ranges",
		"nft flush set ip kernlb-ipvs range-addresses",
		"nft flush map ip kernlb-ipvs range-masquerade-ips",
		"nft flush chain ip kernlb-ipvs range-source",
		"nft flush chain ip kernlb-ipvs find-range",
		"nft add element ip kernlb-ipvs range-drop { 7 }",
		"nft add element ip kernlb-ipvs range-blocks-13 { 7 . 10.96.0.10 . tcp : 7 }",
	} {
		r.run(damage)
		repaired(damage)
	}

	for _, k := range r.fake.Keys() {
		r.submit(ipvsnl.DelService(k))
		repaired("delete " + k.String())
	}
}

// The virtual servers of a range count for it, and events of draining endpoints name the range.
func TestVirtualServersOfARangeAreItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	table := resolve(t, nil, oneRange())
	observation(t, b)
	ok(b.Commit(t.Context(), sm.Diff(nil, table)))(t)
	for _, k := range r.fake.Keys() {
		r.fake.SetStats(k, ipvsnl.DestinationKey{Addr: netip.MustParseAddr("10.244.1.1")},
			ipvsnl.Stats{Connections: 3})
	}

	key := sm.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Protocol: sm.TCP, Port: 1000,
		EndPort: 1999}
	sums := ok(r.counters().Read(t.Context()))(t).Of(table, nil)
	require.Equal(t, counters.Values{Connections: 6},
		sums.Endpoint(key, netip.MustParseAddrPort("10.244.1.1:0")))
	rec := b.pl.have.companion.records[key]
	require.Equal(t, &key, b.pl.have.frontendOf(markService(key, rec.at.mark)))
	require.Nil(t, b.pl.have.frontendOf(markService(key, rec.mark)))
}

// Direct routing is refused at ranges, and so is affinity of prefixes where it must be a hash.
func TestRefusedAtRanges(t *testing.T) {
	t.Parallel()
	for field, edit := range map[string]func(*sm.Service){
		backends.FieldForwarding: func(s *sm.Service) { s.Forwarding = sm.ForwardDirect },
		backends.FieldAffinityService: func(s *sm.Service) {
			sticky(s)
			s.SessionAffinity.WholeService = true
		},
	} {
		require.ErrorContains(t, Check(sm.Diff(nil, resolve(t, nil, oneRange(edit)))), field)
	}

	bits := oneRange(sticky, func(s *sm.Service) { s.SessionAffinity.Bits4 = 24 })
	require.NoError(t, Check(sm.Diff(nil, resolve(t, nil, bits))))
	onePort := atPort(53, bits.Endpoints(goldenService().Name))
	bits = bits.WithEndpoints(goldenService().Name, onePort)
	require.ErrorContains(t, Check(sm.Diff(nil, resolve(t, nil, bits))), backends.FieldAffinityBits)
}
