package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// What is there as wanted is whole, and counted.
func TestUnitsThatAreThereAreWhole(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		require.Len(t, unitsOf(f, h.table), 2)
		s := h.sift(i, h.table)
		r, c := h.judge(i, s, false)
		require.Empty(t, r.gone)
		require.Empty(t, r.pools)
		require.Empty(t, r.left)
		for j, set := range s.sets {
			n := len(h.tables[i].elems[set.Name])
			if !isRead(set.Name) || set.Name == setClusterIPs || set.Name == setHairpins {
				n = 0
			}
			require.Equal(t, n, r.found[j], set.Name)
		}
		require.Len(t, c.units, 2)
		require.Zero(t, c.units[0].from)
		require.Equal(t, len(c.elems), c.units[1].to)

		r, _ = h.judge(i, s, true)
		require.Equal(t, []string{"db", "web"}, services(r.gone), "by force")
		require.Len(t, r.left, len(c.elems))
	}
}

// A unit of which an element is missing is gone as a whole, and its other elements are left over.
func TestAUnitThatLacksAnElementIsGone(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		h.elements(i, func(set, key string, e *found) {
			delete(h.tables[i].elems[set], key)
			s := h.sift(i, h.table)
			r, c := h.judge(i, s, false)
			h.tables[i].elems[set][key] = e

			require.Len(t, services(r.gone), 1, "%s %x", set, key)
			require.Empty(t, r.pools)
			u := c.units[0]
			if u.unit[0].Service.Name.Name != services(r.gone)[0] {
				u = c.units[1]
			}
			require.Len(t, r.gone, len(u.unit), "all frontends of the service port")
			require.Len(t, r.left, u.to-u.from-1)
			for _, l := range r.left {
				require.Equal(t, h.tables[i].elems[l.set][string(l.elem.Key)+
					string(l.elem.KeyEnd)].Elem, l.elem)
			}
			all := 0
			for _, n := range r.found {
				all += n
			}
			require.Equal(t, len(c.elems)-1, all)
		})
	}
}

// A comment that is not as wanted makes a frontend another one. On an endpoint it means nothing,
// nor does other user data than comments anywhere.
func TestCommentsCountWhereTheyMeanSomething(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		h.elements(i, func(set, key string, e *found) {
			as := e.UserData
			e.UserData = nft.AppendComment(nil, "default/web:http cluster IP verdict=drop")
			r, _ := h.judge(i, h.sift(i, h.table), false)
			if isLarge(set) {
				require.Empty(t, r.gone, set)
			} else {
				require.Len(t, services(r.gone), 1, set)
				found := slices.ContainsFunc(r.left, func(l leftover) bool {
					return l.set == set && string(l.elem.UserData) == string(e.UserData)
				})
				require.True(t, found, "what is left over is what is there: %s", set)
			}
			require.Empty(t, r.pools)
			e.UserData = append([]byte{77, 1, 0}, as...)
			r, _ = h.judge(i, h.sift(i, h.table), false)
			require.Empty(t, r.gone, set)
			require.Empty(t, r.pools, set)
			e.UserData = as
		})
	}
}

// Where all frontends of a unit have the same other endpoints, only its pools are others.
func TestOtherEndpointsAreAnotherPool(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	undo := h.swap(0, podOne, stranger, everywhere)
	r, _ := h.judge(0, h.sift(0, h.table), false)
	require.Empty(t, r.gone)
	require.Empty(t, r.left)
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
	r, _ = h.judge(0, h.sift(0, h.table), false)
	require.Empty(t, r.gone)
	require.Equal(t, uint16(2), r.pools[0].New.Slots[0].Weight, "what follows itself has a weight")
	undo()
}

// A unit is gone if two frontends have different endpoints for the same pool, or if an endpoint is
// not written as we write it.
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
			r, _ := h.judge(0, h.sift(0, h.table), false)
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
			r, _ := h.judge(0, h.sift(0, h.table), false)
			require.Len(t, services(r.gone), 1, "%x", bad)
		}
		e.Data = data
	}
}

// A pool that has what is wanted is that very pool; what the kernel does not hold of it, it does
// not have.
func TestPoolsAreRead(t *testing.T) {
	t.Parallel()
	want := &servicemodel.Pool{ID: servicemodel.PoolID{Service: servicemodel.PortName{Port: "p"}},
		Slots: []servicemodel.Slot{{Endpoint: podOne, Weight: 2}, {Endpoint: podTwo, Weight: 1}}}
	elements := []netip.AddrPort{podOne, podOne, podTwo} // of want
	slots := func(l ...netip.AddrPort) []asked {
		var as []asked
		for j, ep := range l {
			a := asked{want: nft.Elem{Key: []byte{byte(j)},
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
	for _, change := range []func(p *servicemodel.Pool){
		func(p *servicemodel.Pool) { p.Scheduler = servicemodel.Random },
		func(p *servicemodel.Pool) { p.Forwarding = servicemodel.ForwardDirect },
	} {
		p := *want
		change(&p)
		require.Equal(t, want, poolIn(nft.IPv4, slots(podOne, podOne, podTwo), &p))
	}
}

// An answer about another range, which begins or ends elsewhere, is none.
func TestAnAnswerIsAboutWhatWasAsked(t *testing.T) {
	t.Parallel()
	want := nft.Elem{Key: []byte{1}, KeyEnd: []byte{2}}
	for _, e := range []nft.Elem{{Key: []byte{0}, KeyEnd: []byte{2}},
		{Key: []byte{1}, KeyEnd: []byte{3}}, {Key: []byte{1}}} {
		a := asked{want: want}
		a.answer(e)
		require.Equal(t, asked{want: want}, a, "%v", e)
	}
	a := asked{want: want}
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

// A unit can be asked for if the kernel can hold it.
func TestWhichUnitsCanBeExpressed(t *testing.T) {
	t.Parallel()
	table := func(edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)) (unit,
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
		got, err := servicemodel.NewTable(servicemodel.Contents{
			Frontends: []*servicemodel.Frontend{fe}, Pools: []*servicemodel.Pool{pool}})
		require.NoError(t, err)
		return unit{fe}, got
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

// What several found is what one would have found.
func TestFindingsAreMerged(t *testing.T) {
	t.Parallel()
	fe := func(port uint16) *servicemodel.Frontend {
		return &servicemodel.Frontend{Key: servicemodel.FrontendKey{Port: port}}
	}
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{n}) }
	some := func(n byte) *findings {
		return &findings{found: []int{int(n), 0, 2 * int(n)}, gone: []*servicemodel.Frontend{
			fe(uint16(n))}, pools: []servicemodel.PoolChange{{}},
			addrs: map[string][]netip.Addr{"a": {addr(n)}, fmt.Sprint("b", n): {addr(n)}},
			left:  []leftover{{set: fmt.Sprint(n)}}}
	}
	all := newFindings(3)
	all.merge(some(1))
	all.merge(some(2))
	require.Equal(t, findings{found: []int{3, 0, 6}, gone: []*servicemodel.Frontend{fe(1), fe(2)},
		pools: []servicemodel.PoolChange{{}, {}},
		addrs: map[string][]netip.Addr{"a": {addr(1), addr(2)}, "b1": {addr(1)}, "b2": {addr(2)}},
		left:  []leftover{{set: "1"}, {set: "2"}}}, all)
}

// Addresses that were asked for are counted or noted as missing, also where units were asked for
// together with them.
func TestAddressesAreFoundOrNot(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		for _, set := range []string{setClusterIPs, setHairpins} {
			s := h.sift(i, h.table)
			all := slices.Collect(h.table.ClusterIPs())
			if set == setHairpins {
				all = slices.Collect(h.table.Hairpins())
			}
			all = slices.DeleteFunc(all, func(a netip.Addr) bool {
				return servicemodel.FamilyOf(a) != f.Model
			})
			require.NotEmpty(t, all)
			missing := map[int]netip.Addr{4: netip.MustParseAddr("10.9.9.9"),
				16: netip.MustParseAddr("fd00::9")}[f.AddrLen]
			c, r := &chunk{}, newFindings(len(s.sets))
			j := &job{set: set, addrs: append([]netip.Addr{missing}, all...)}
			c.addUnit(s, newWriter(), unitsOf(f, h.table)[0])
			for _, a := range j.addrs {
				c.addAddr(s, set, a)
			}
			h.answer(i, s, c)
			r.judgeAddrs(j, c)
			require.Equal(t, map[string][]netip.Addr{set: {missing}}, r.addrs)
			require.Equal(t, len(all), r.found[s.position(set)])
		}
	}
}
