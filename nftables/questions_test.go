package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// A service port whose elements all exist as wanted is whole, and its elements are counted.
func TestUnitsThatAreThereAreWhole(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		require.Len(t, portsOf(f, h.table), 2)
		r, c := h.judge(i, false)
		require.Empty(t, r.gone)
		require.Empty(t, r.pools)
		require.Zero(t, left(r))
		for j, set := range r.sets {
			n := len(h.tables[i].elems[set.Name])
			if !isRead(set.Name) || set.Name == setClusterIPs || set.Name == setHairpins {
				n = 0
			}
			require.Equal(t, n, r.found[j], set.Name)
		}
		require.Len(t, c.ports, 2)
		require.Zero(t, c.ports[0].from)
		require.Equal(t, len(c.all), c.ports[1].to)

		r, _ = h.judge(i, true)
		require.Equal(t, []string{"db", "web"}, services(r.gone), "they are contested")
		require.Equal(t, len(c.all), left(r))
	}
}

// A service port that lacks an element is gone as a whole, and its other elements are left over.
func TestAUnitThatLacksAnElementIsGone(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		h.elements(i, func(set, key string, e *nft.Elem) {
			delete(h.tables[i].elems[set], key)
			r, c := h.judge(i, false)
			h.tables[i].elems[set][key] = e

			require.Len(t, services(r.gone), 1, "%s %x", set, key)
			require.Empty(t, r.pools)
			u := c.ports[0]
			if u.port[0].Service.Name.Name != services(r.gone)[0] {
				u = c.ports[1]
			}
			require.Len(t, r.gone, len(u.port), "all frontends of the service port")
			require.Equal(t, u.to-u.from-1, left(r))
			for in, l := range r.elems {
				for k, x := range l {
					require.Equal(t, h.tables[i].elems[in][k], x)
				}
			}
			all := 0
			for _, n := range r.found {
				all += n
			}
			require.Equal(t, len(c.all)-1, all)
		})
	}
}

// A frontend with another comment is another frontend. A comment on an endpoint means nothing, nor
// does user data of other types anywhere.
func TestCommentsCountWhereTheyMeanSomething(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		h.elements(i, func(set, key string, e *nft.Elem) {
			as := e.UserData
			e.UserData = nft.AppendComment(nil, "default/web:http cluster IP verdict=drop")
			r, _ := h.judge(i, false)
			if isLarge(set) {
				require.Empty(t, r.gone, set)
			} else {
				require.Len(t, services(r.gone), 1, set)
				require.Equal(t, e, r.elems[set][key], "what is left over is what is there")
			}
			require.Empty(t, r.pools)
			e.UserData = append([]byte{77, 1, 0}, as...)
			r, _ = h.judge(i, false)
			require.Empty(t, r.gone, set)
			require.Empty(t, r.pools, set)
			e.UserData = as
		})
	}
}

// If all frontends of a service port have the same other endpoints, only its pools differ.
func TestOtherEndpointsAreAnotherPool(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	undo := h.swap(0, podOne, stranger, everywhere)
	r, _ := h.judge(0, false)
	require.Empty(t, r.gone)
	require.Zero(t, left(r))
	require.NotEmpty(t, r.pools)
	for _, pc := range r.pools {
		require.Equal(t, h.table.Pool(pc.Old.ID), pc.Old)
		require.Equal(t, pc.Old.ID, pc.New.ID)
		for j, slot := range pc.Old.Slots {
			if slot.Endpoint == podOne {
				slot.Endpoint = stranger
			}
			require.Equal(t, slot, pc.New.Slots[j])
		}
		require.Len(t, pc.New.Slots, len(pc.Old.Slots))
	}
	undo()

	undo = h.swap(0, podOne, podTwo, everywhere)
	r, _ = h.judge(0, false)
	require.Empty(t, r.gone)
	require.Equal(t, uint16(2), r.pools[0].New.Slots[0].Weight, "what follows itself has a weight")
	undo()
}

// A service port is gone if two frontends have different endpoints for the same pool, or if an
// endpoint is not encoded as ours are.
func TestEndpointsOfAUnitMustAgree(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, set := range []string{"service-endpoints", "nodeport-endpoints",
		"service-external-endpoints", "nodeport-external-endpoints"} {
		for key, e := range h.tables[0].elems[set] {
			at := nft.Reader{Bytes: e.Data}
			if at.Endpoint(4) != podOne {
				continue
			}
			undo := h.swap(0, podOne, stranger, func(s, k string) bool {
				return s == set && k == key
			})
			r, _ := h.judge(0, false)
			require.Equal(t, []string{"web"}, services(r.gone), "%s %x", set, key)
			require.Empty(t, r.pools)
			undo()
		}
	}
	for _, e := range h.tables[0].elems["service-endpoints"] {
		data := e.Data
		for _, bad := range [][]byte{data[:len(data)-1], append(slices.Clone(data), 0),
			append(slices.Clone(data[:len(data)-1]), 1), nil} {
			e.Data = bad
			r, _ := h.judge(0, false)
			require.Len(t, services(r.gone), 1, "%x", bad)
		}
		e.Data = data
	}
}

// If a pool is as wanted, the reading returns the wanted pool itself. Fields that the kernel does
// not hold are empty in any other pool.
func TestPoolsAreRead(t *testing.T) {
	t.Parallel()
	want := &servicemodel.Pool{ID: servicemodel.PoolID{Service: servicemodel.PortName{Port: "p"}},
		Slots: []servicemodel.Slot{{Endpoint: podOne, Weight: 2}, {Endpoint: podTwo, Weight: 1}}}
	elements := []netip.AddrPort{podOne, podOne, podTwo} // elements of want
	slots := func(l ...netip.AddrPort) []question {
		var as []question
		for j, ep := range l {
			a := question{want: nft.Elem{Key: []byte{byte(j)},
				Data: nft.AppendEndpoint(nil, elements[j])}}
			a.answer(nft.Elem{Key: []byte{byte(j)}, Data: nft.AppendEndpoint(nil, ep)})
			as = append(as, a)
		}
		return as
	}
	require.Same(t, want, poolIn(nft.IPv4, slots(podOne, podOne, podTwo), want))
	got := poolIn(nft.IPv4, slots(podOne, podTwo, podTwo), want)
	require.Equal(t, &servicemodel.Pool{ID: want.ID, Slots: []servicemodel.Slot{
		{Endpoint: podOne, Weight: 1}, {Endpoint: podTwo, Weight: 2}}}, got)
	got = poolIn(nft.IPv4, slots(podOne, podTwo, podOne), want)
	require.Len(t, got.Slots, 3, "only what follows itself has a weight")
	direct := *want
	direct.Forwarding = servicemodel.ForwardDirect
	require.Equal(t, want, poolIn(nft.IPv4, slots(podOne, podOne, podTwo), &direct))
	random := *want
	random.Scheduler = servicemodel.Random
	named := slots(podOne, podOne, podTwo)
	first := named[0].want
	first.UserData = nft.AppendComment(nil, "scheduler=random")
	named[0].answer(first)
	require.Equal(t, &random, poolIn(nft.IPv4, named, want))
}

// An answer about a range with another beginning or end is ignored.
func TestAnAnswerIsAboutWhatWasAsked(t *testing.T) {
	t.Parallel()
	want := nft.Elem{Key: []byte{1}, KeyEnd: []byte{2}}
	for _, e := range []nft.Elem{{Key: []byte{0}, KeyEnd: []byte{2}},
		{Key: []byte{1}, KeyEnd: []byte{3}}, {Key: []byte{1}}} {
		a := question{want: want}
		a.answer(e)
		require.Equal(t, question{want: want}, a, "%v", e)
	}
	a := question{want: want}
	a.answer(want)
	require.True(t, a.found && a.same)
	require.Equal(t, want, a.elem())
	lent := nft.Elem{Key: []byte{1}, KeyEnd: []byte{2}, Data: []byte{9}, UserData: []byte{8}}
	a.answer(lent)
	require.True(t, a.found)
	require.False(t, a.same)
	lent.Data[0], lent.UserData[0] = 0, 0
	require.Equal(t, nft.Elem{Key: want.Key, KeyEnd: want.KeyEnd, Data: []byte{9},
		UserData: []byte{8}}, a.elem(), "it is kept")
}

// A service port can be asked for if the kernel can hold it.
func TestWhichUnitsCanBeExpressed(t *testing.T) {
	t.Parallel()
	table := func(edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)) (servicePort,
		*servicemodel.Table) {
		fe := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
			Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80},
			Internal: servicemodel.BalanceCluster, External: servicemodel.Drop}
		id, _ := fe.Pool(fe.Internal)
		pool := &servicemodel.Pool{ID: id, Slots: []servicemodel.Slot{{Endpoint: podOne}}}
		for n := 0; n <= maxSlots; n += 1 << 15 {
			pool.Slots = append(pool.Slots, servicemodel.Slot{Endpoint: stranger, Weight: 1 << 15})
		}
		pool.Slots = pool.Slots[:3]
		edit(fe, pool)
		got := ok(servicemodel.NewTable(servicemodel.Contents{
			Frontends: []*servicemodel.Frontend{fe}, Pools: []*servicemodel.Pool{pool}}))(t)
		return servicePort{fe}, got
	}
	for _, tc := range []struct {
		name string
		edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)
		want bool
	}{
		{"as many slots as there can be", func(*servicemodel.Frontend, *servicemodel.Pool) {},
			true},
		{"one more", func(_ *servicemodel.Frontend, p *servicemodel.Pool) {
			p.Slots[0].Weight = 1
		}, false},
		{"no pool", func(_ *servicemodel.Frontend, p *servicemodel.Pool) {
			p.ID.Service.Port = "q"
		}, false},
		{"one more, for outside clients", func(fe *servicemodel.Frontend, p *servicemodel.Pool) {
			p.Slots[0].Weight = 1
			fe.Internal, fe.External = fe.External, fe.Internal
		}, false},
		{"sources on a node port", func(fe *servicemodel.Frontend, _ *servicemodel.Pool) {
			fe.Key.Addr, fe.Sources = netip.IPv4Unspecified(), []netip.Prefix{}
		}, false},
		{"sources", func(fe *servicemodel.Frontend, _ *servicemodel.Pool) {
			fe.Sources = []netip.Prefix{}
		}, true},
	} {
		u, got := table(tc.edit)
		require.Equal(t, tc.want, u.expressible(got), tc.name)
	}
}

// Addresses that were asked for are counted or noted as missing, even if service ports were asked
// for in the same request.
func TestAddressesAreFoundOrNot(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		for _, set := range []string{setClusterIPs, setHairpins} {
			r := h.reading(i, h.table)
			all := slices.Collect(addressesOf(h.table, f, set))
			require.NotEmpty(t, all)
			missing := map[int]netip.Addr{4: netip.MustParseAddr("10.9.9.9"),
				16: netip.MustParseAddr("fd00::9")}[f.AddrLen]
			q, addrs := &questions{}, append([]netip.Addr{missing}, all...)
			q.addPort(r, newWriter(), portsOf(f, h.table)[0])
			for _, a := range addrs {
				q.add(r.position(set), nft.Elem{Key: appendAddrKey(nil, set, a)})
			}
			h.answer(i, r, q)
			r.noteAddrs(q, set, addrs)
			require.Equal(t, map[string][]netip.Addr{set: {missing}}, r.lacks)
			require.Equal(t, len(all), r.found[r.position(set)])
		}
	}
}
