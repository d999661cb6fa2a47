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

// unitsState has two services of both families: one with a frontend of each kind, whose outside
// clients have endpoints of their own, and a plain one.
func unitsState() servicemodel.State {
	both := func(s *servicemodel.Service, four, six string) {
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr(four), netip.MustParseAddr(six)}
	}
	web := goldenService(func(s *servicemodel.Service) {
		both(s, "10.96.0.10", "fd00:10:96::10")
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.10")},
			{Addr: netip.MustParseAddr("2001:db8::10")}}
		s.LoadBalancerSourceRanges = prefixes("198.51.100.0/24", "192.0.2.128/25", "2001:db8:5::/48")
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

// held is a table and what the kernel holds of it.
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

// sift returns the reading of a family, given what is wanted, before anything was asked.
func (h *held) sift(i int, want *servicemodel.Table) *sift {
	raw := h.copyOf(i)
	raw.elems = map[string]map[string]*found{}
	sh := shapeOf(raw.sets)
	return newSift(nft.Families[i], raw, &sh, want)
}

// answer answers as the kernel does, from the elements that it holds.
func (h *held) answer(i int, s *sift, c *chunk) {
	for j := range c.elems {
		a := &c.elems[j]
		if a.set < 0 {
			continue
		}
		key := string(a.want.Key) + string(a.want.KeyEnd)
		if e := h.tables[i].elems[s.sets[a.set].Name][key]; e != nil {
			a.answer(e.Elem)
		}
	}
}

// judge asks for the units of a family and judges the answers.
func (h *held) judge(i int, s *sift, force bool) (*findings, *chunk) {
	c, w, r := &chunk{}, newWriter(), newFindings(len(s.sets))
	for _, u := range unitsOf(s.f, s.want) {
		c.addUnit(s, w, u)
	}
	h.answer(i, s, c)
	r.judge(s, c, force)
	return &r, c
}

// elements calls fn with each element of a frontend that the kernel holds.
func (h *held) elements(i int, fn func(set, key string, e *found)) {
	for _, set := range sortedKeys(h.tables[i].elems) {
		if !isRead(set) || set == setClusterIPs || set == setHairpins {
			continue
		}
		for _, key := range sortedKeys(h.tables[i].elems[set]) {
			fn(set, key, h.tables[i].elems[set][key])
		}
	}
}

// services returns the names of the services of frontends, each once.
func services(l []*servicemodel.Frontend) []string {
	var names []string
	for _, fe := range l {
		names = append(names, fe.Service.Name.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

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

// A comment that is not as wanted makes a frontend another one. On an endpoint it means nothing, and
// other user data than comments never does.
func TestCommentsCountWhereTheyMeanSomething(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		h.elements(i, func(set, key string, e *found) {
			as := e.UserData
			e.UserData = nft.AppendComment(nil, "default/web:http cluster-ip drop")
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

// swap replaces an endpoint, in the slots that ok chooses, and returns how to undo it.
func (h *held) swap(i int, from, to netip.AddrPort, ok func(set, key string) bool) (undo func()) {
	var undos []func()
	h.elements(i, func(set, key string, e *found) {
		r := nft.Reader{Bytes: e.Data}
		if !isLarge(set) || r.Endpoint(nft.Families[i].AddrLen) != from || !ok(set, key) {
			return
		}
		data := e.Data
		undos = append(undos, func() { e.Data = data })
		e.Data = nft.AppendEndpoint(nil, to)
	})
	require.NotEmpty(h.t, undos)
	return func() {
		for _, u := range undos {
			u()
		}
	}
}

var (
	first  = netip.MustParseAddrPort("10.244.1.1:8080")
	second = netip.MustParseAddrPort("10.244.1.2:8080")
	other  = netip.MustParseAddrPort("10.244.9.9:8080")
)

func everywhere(string, string) bool { return true }

// Where all frontends of a unit have the same other endpoints, only its pools are others.
func TestOtherEndpointsAreAnotherPool(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	undo := h.swap(0, first, other, everywhere)
	r, _ := h.judge(0, h.sift(0, h.table), false)
	require.Empty(t, r.gone)
	require.Empty(t, r.left)
	require.NotEmpty(t, r.pools)
	for _, pc := range r.pools {
		require.Same(t, h.table.Pool(pc.Old.ID), pc.Old)
		require.Equal(t, pc.Old.ID, pc.New.ID)
		for j, slot := range pc.Old.Slots {
			if slot.Endpoint == first {
				slot.Endpoint = other
			}
			require.Equal(t, slot, pc.New.Slots[j])
		}
		require.Len(t, pc.New.Slots, len(pc.Old.Slots))
	}
	undo()

	undo = h.swap(0, first, second, everywhere)
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
			if at.Endpoint(4) != first {
				continue
			}
			undo := h.swap(0, first, other, func(s, k string) bool { return s == set && k == key })
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
		Slots: []servicemodel.Slot{{Endpoint: first, Weight: 2}, {Endpoint: second, Weight: 1}}}
	slots := func(l ...netip.AddrPort) []asked {
		var as []asked
		for j, ep := range l {
			a := asked{want: nft.Elem{Key: []byte{byte(j)},
				Data: nft.AppendEndpoint(nil, expand(nil, want)[j])}}
			a.answer(nft.Elem{Key: []byte{byte(j)}, Data: nft.AppendEndpoint(nil, ep)})
			as = append(as, a)
		}
		return as
	}
	require.Same(t, want, poolIn(nft.IPv4, slots(first, first, second), want))
	got := poolIn(nft.IPv4, slots(first, second, second), want)
	require.Equal(t, &servicemodel.Pool{ID: want.ID, Slots: []servicemodel.Slot{
		{Endpoint: first, Weight: 1}, {Endpoint: second, Weight: 2}}}, got)
	got = poolIn(nft.IPv4, slots(first, second, first), want)
	require.Len(t, got.Slots, 3, "only what follows itself has a weight")
	for _, change := range []func(p *servicemodel.Pool){
		func(p *servicemodel.Pool) { p.Scheduler = servicemodel.Random },
		func(p *servicemodel.Pool) { p.Forwarding = servicemodel.ForwardDirect },
	} {
		p := *want
		change(&p)
		require.Equal(t, want, poolIn(nft.IPv4, slots(first, first, second), &p))
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
		pool := &servicemodel.Pool{ID: id, Slots: []servicemodel.Slot{{Endpoint: first}}}
		for n := 0; n <= maxSlots; n += 1 << 15 {
			pool.Slots = append(pool.Slots, servicemodel.Slot{Endpoint: other, Weight: 1 << 15})
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
