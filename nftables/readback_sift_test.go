package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// An element is expected if it was asked for, and no other element is.
func TestWhatIsExpected(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		s := h.sift(i, h.table)
		for set, name := range s.sets {
			if !isRead(name.Name) {
				continue
			}
			for _, e := range h.tables[i].elems[name.Name] {
				require.True(t, s.expects(set, e.Elem), "%s %s", name.Name, name.ElemText(e.Elem))
				for at := range e.Key {
					x := cloneElem(e.Elem)
					x.Key[at] ^= 0x40 // another address, protocol, port or slot
					require.False(t, s.expects(set, x), "%s %s", name.Name, name.ElemText(x))
				}
				short := e.Elem
				short.Key = short.Key[:len(short.Key)-1]
				require.False(t, s.expects(set, short), name.Name)
				if e.KeyEnd != nil {
					x := cloneElem(e.Elem)
					x.KeyEnd[len(x.KeyEnd)-1] ^= 1
					require.False(t, s.expects(set, x))
				}
			}
		}
	}
}

// Slots up to the last are expected, in the map of those clients that have them.
func TestSlotsAreExpectedUpToTheLast(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.sift(0, h.table)
	web := servicemodel.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"),
		Protocol: servicemodel.TCP, Port: 80}
	db := web
	db.Addr = netip.MustParseAddr("10.96.0.20")
	for _, tc := range []struct {
		set  string
		key  servicemodel.FrontendKey
		want int
	}{
		{"service-endpoints", web, 3}, {"service-external-endpoints", web, 2},
		{"service-endpoints", db, 2}, {"service-external-endpoints", db, 0},
	} {
		n := 0
		for s.expects(s.position(tc.set), nft.Elem{Key: nft.AppendSlot(
			nft.AppendFrontend(nil, tc.key), n)}) {
			n++
		}
		require.Equal(t, tc.want, n, "%s %v", tc.set, tc.key)
	}
}

// A service port that the kernel cannot hold was not asked for.
func TestWhatCannotBeHeldIsNotExpected(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	var c servicemodel.Contents
	for fe := range h.table.Frontends() {
		x := *fe
		if x.Key.NodePort() {
			x.Sources = []netip.Prefix{}
		}
		c.Frontends = append(c.Frontends, &x)
	}
	c.Pools = slices.Collect(h.table.Pools())
	want, err := servicemodel.NewTable(c)
	require.NoError(t, err)
	s := h.sift(0, want)
	key := func(addr string) nft.Elem {
		return nft.Elem{Key: nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: 80})}
	}
	require.False(t, s.expects(s.position("services"), key("10.96.0.10")))
	require.True(t, s.expects(s.position("services"), key("10.96.0.20")))

	s.raw.add("services", key("10.96.0.10"))
	require.Empty(t, s.doubtful())
	s.raw.add("service-drop", key("10.96.0.20"))
	require.Len(t, s.doubtful(), 1)
}

// Which frontend an element is about.
func TestElementsAreAboutFrontends(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		s := h.sift(i, h.table)
		h.elements(i, func(set, _ string, e *found) {
			key, ok := s.keyOf(s.position(set), e.Elem)
			require.True(t, ok, set)
			require.NotNil(t, h.table.Frontend(key), "%s: %v", set, key)
			n := len(nft.AppendFrontend(nil, key))
			got, ok := s.keyOf(s.position(set), nft.Elem{Key: e.Key[:n]})
			require.True(t, ok)
			require.Equal(t, key, got)
			_, ok = s.keyOf(s.position(set), nft.Elem{Key: e.Key[:n-1]})
			require.False(t, ok, "%s: too short", set)
		})
		for _, set := range []string{setClusterIPs, setHairpins} {
			for _, e := range h.tables[i].elems[set] {
				_, ok := s.keyOf(s.position(set), e.Elem)
				require.False(t, ok, set)
			}
		}
	}
}

// An address of a set is one if it is that and nothing else; that of a hairpin stands there twice.
func TestAddressesOfSets(t *testing.T) {
	t.Parallel()
	a, b := []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}
	for _, tc := range []struct {
		set  string
		key  []byte
		want bool
	}{
		{setClusterIPs, a, true}, {setClusterIPs, a[:3], false},
		{setClusterIPs, slices.Concat(a, a), false}, {setHairpins, slices.Concat(a, a), true},
		{setHairpins, slices.Concat(a, b), false}, {setHairpins, a, false},
		{setHairpins, slices.Concat(a, a, a), false},
	} {
		got, ok := addressIn(nft.IPv4, tc.set, nft.Elem{Key: tc.key})
		require.Equal(t, tc.want, ok, "%s %v", tc.set, tc.key)
		if ok {
			require.Equal(t, netip.AddrFrom4([4]byte(a)), got)
		}
	}
}

// A unit is doubtful if something is left over that has to do with it: an element of one of its
// frontends, or a frontend that says that it is of the same service port. What was gone anyway is
// not.
func TestWhichUnitsAreDoubtful(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	key := func(addr string, port uint16) nft.Elem {
		return nft.Elem{Key: nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: port})}
	}
	says := func(e nft.Elem, comment string) nft.Elem {
		e.UserData = nft.AppendComment(nil, comment)
		return e
	}
	slot := func(e nft.Elem) nft.Elem {
		e.Key = nft.AppendSlot(e.Key, 9)
		return e
	}
	for _, tc := range []struct {
		name, set string
		elem      nft.Elem
		want      string
	}{
		{"a verdict", "service-drop", key("10.96.0.20", 80), "db"},
		{"a slot", "service-endpoints", slot(key("10.96.0.10", 80)), "web"},
		{"a slot of a node port", "nodeport-endpoints", slot(key("0.0.0.0", 30080)), "web"},
		{"of nobody", "service-drop", key("10.96.0.99", 80), ""},
		{"another frontend that says so", "services",
			says(key("10.96.0.99", 80), "default/db:http cluster IP"), "db"},
		{"another node port that says so", "nodeports",
			says(key("0.0.0.0", 1), "default/web:http node port"), "web"},
		{"not a frontend, whatever it says", "service-drop",
			says(key("10.96.0.99", 80), "default/db:http cluster IP"), ""},
		{"a frontend of a service that nobody wants", "services",
			says(key("10.96.0.99", 80), "default/none:http cluster IP"), ""},
		{"a frontend that says nothing", "services", key("10.96.0.99", 80), ""},
		{"a set that is not read", setSettings, key("10.96.0.10", 80), ""},
		{"a set that is not known", "service-size-99", key("10.96.0.10", 80), ""},
	} {
		requireDoubt(t, h, tc.set, tc.elem, tc.want, tc.name)
	}
	s := h.sift(0, nil)
	s.raw.add("service-drop", key("10.96.0.20", 80))
	require.Empty(t, s.doubtful(), "nothing is wanted")
}

// requireDoubt requires that an element that is left over makes the units of a service doubtful,
// or none.
func requireDoubt(t *testing.T, h *held, set string, e nft.Elem, want, what string) {
	t.Helper()
	s := h.sift(0, h.table)
	s.raw.add(set, e)
	var names []string
	for _, u := range s.doubtful() {
		require.Equal(t, unitOf(s.f, h.table, u[0].Service), u)
		names = append(names, u[0].Service.Name.Name)
	}
	if want == "" {
		require.Empty(t, names, what)
		return
	}
	require.Equal(t, []string{want}, names, what)
	again := cloneElem(e)
	again.Key = append(again.Key, 0, 0, 0, 9)
	s.raw.add(set, again)
	require.Len(t, s.doubtful(), 1, "it is doubted once: %s", what)
	s.gone = []*servicemodel.Frontend{unitOf(s.f, h.table, servicemodel.PortName{
		Name: servicemodel.Name{Namespace: "default", Name: want}, Port: "http",
		Protocol: servicemodel.TCP})[0]}
	require.Empty(t, s.doubtful(), what)
}

// A unit that no longer counts as whole has no pool that is only another one, and what is there of
// it was counted before.
func TestWhatIsDoubtedIsTakenBack(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.sift(0, h.table)
	undo := h.swap(0, podOne, stranger, everywhere)
	defer undo()
	dbUndo := h.swap(0, netip.MustParseAddrPort("10.244.3.1:8080"), stranger, everywhere)
	defer dbUndo()
	r, _ := h.judge(0, s, false)
	s.take(r)
	require.Empty(t, r.left, "it was taken over")
	found := slices.Clone(s.found)
	require.True(t, slices.ContainsFunc(s.pools, func(c servicemodel.PoolChange) bool {
		return c.Old.ID.Service.Name.Name == "web"
	}))

	var web []unit
	for _, u := range unitsOf(s.f, h.table) {
		if u[0].Service.Name.Name == "web" {
			web = []unit{u}
		}
	}
	c, again := &chunk{}, newFindings(len(s.sets))
	c.addUnit(s, newWriter(), web[0])
	h.answer(0, s, c)
	again.judge(s, c, true)
	s.doubted(web, &again)
	require.Equal(t, found, s.found)
	require.Len(t, s.pools, 1)
	require.Equal(t, "db", s.pools[0].Old.ID.Service.Name.Name)
	require.Equal(t, []string{"web"}, services(s.gone))
	n := 0
	for _, l := range s.raw.elems {
		n += len(l)
	}
	require.Equal(t, len(c.elems), n)
}

// The slots of a frontend that nobody wants are asked for by the sets that say how many it has.
func TestSlotsOfWhatIsLeftOverAreAskedFor(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, k := range kinds {
		s := h.sift(0, h.table)
		addr := "10.96.0.99"
		if k == kindNodePort {
			addr = "0.0.0.0"
		}
		key := nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: 99})
		add := func(set string, key []byte) { s.raw.add(set, nft.Elem{Key: key}) }
		add(k.registry, key)
		c := &chunk{}
		s.addSlots(c, k.registry, key)
		require.Empty(t, c.elems, "no set says how many")

		add(k.prefix+"-size-3", key)
		add(k.prefix+"-external-size-2", key)
		add(k.prefix+"-size-4", append(slices.Clone(key[:len(key)-1]), 1)) // another frontend
		add(k.prefix+"-endpoints", nft.AppendSlot(slices.Clip(key), 1))    // is known
		s.addSlots(c, k.registry, key)
		var got []string
		for _, a := range c.elems {
			require.Equal(t, key, a.want.Key[:len(key)])
			got = append(got, s.sets[a.set].Name+string(rune('0'+slotIn(a.want))))
		}
		require.ElementsMatch(t, []string{k.prefix + "-endpoints0", k.prefix + "-endpoints2",
			k.prefix + "-external-endpoints0", k.prefix + "-external-endpoints1"}, got)
	}
}

// The endpoints that were found and that nobody wants as hairpins are those of other pools and of
// maps, each once.
func TestWhichEndpointsMayBeHairpinsToo(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.sift(0, h.table)
	wanted := netip.MustParseAddr("10.244.1.1")
	require.True(t, h.table.HasHairpin(wanted))
	at := func(n byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, n}), 8080)
	}
	s.pools = []servicemodel.PoolChange{{New: &servicemodel.Pool{Slots: []servicemodel.Slot{
		{Endpoint: at(1)}, {Endpoint: podOne}, {Endpoint: at(1)}}}}}
	for n, set := range []string{"service-endpoints", "service-external-endpoints",
		"nodeport-endpoints", "nodeport-external-endpoints"} {
		s.raw.add(set, nft.Elem{Key: []byte{1}, Data: nft.AppendEndpoint(nil, at(byte(n+2)))})
		s.raw.add(set, nft.Elem{Key: []byte{2}, Data: nft.AppendEndpoint(nil, at(2))})
		s.raw.add(set, nft.Elem{Key: []byte{3}, Data: nft.AppendEndpoint(nil, podOne)})
	}
	var want []netip.Addr
	for n := range byte(5) {
		want = append(want, at(n+1).Addr())
	}
	require.ElementsMatch(t, want, s.unwantedAddrs())
}

// What was asked for besides and is there is taken over and counted, once.
func TestWhatIsLeftIsCountedOnce(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.sift(0, h.table)
	c := &chunk{}
	for n := range 3 {
		c.add(s.position(setClusterIPs), nft.Elem{Key: []byte{10, 9, 9, byte(n)}})
	}
	c.elems[0].answer(nft.Elem{Key: []byte{10, 9, 9, 0}, Data: []byte{7}})
	c.elems[1].answer(nft.Elem{Key: []byte{10, 9, 9, 1}})
	s.left(c)
	s.left(c)
	require.Equal(t, 2, s.found[s.position(setClusterIPs)])
	l := s.raw.elems[setClusterIPs]
	require.Len(t, l, 2)
	require.Equal(t, []byte{7}, l["\x0a\x09\x09\x00"].Data)
}

// A set is complete if the kernel tells its number and that many were found.
func TestWhenASetIsComplete(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.sift(0, h.table)
	set := s.position(setClusterIPs)
	require.False(t, s.complete(set))
	s.found[set] = 2
	require.True(t, s.complete(set))
	s.found[set] = 3
	require.False(t, s.complete(set))
	delete(s.raw.counts, setClusterIPs)
	s.found[set] = 0
	require.False(t, s.complete(set), "it is not known how many there are")
	require.Negative(t, s.position("unknown"))
}
