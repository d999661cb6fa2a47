package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading expects exactly the elements that it asked for.
func TestWhatIsExpected(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		s := h.reading(i, h.table)
		for set, name := range s.sets {
			if !isRead(name.Name) {
				continue
			}
			for _, e := range h.tables[i].elems[name.Name] {
				require.True(t, s.expects(set, *e), "%s %s", name.Name, name.ElemText(*e))
				for at := range e.Key {
					x := e.Clone()
					x.Key[at] ^= 0x40 // another address, protocol, port or slot
					require.False(t, s.expects(set, x), "%s %s", name.Name, name.ElemText(x))
				}
				short := *e
				short.Key = short.Key[:len(short.Key)-1]
				require.False(t, s.expects(set, short), name.Name)
				if e.KeyEnd != nil {
					x := e.Clone()
					x.KeyEnd[len(x.KeyEnd)-1] ^= 1
					require.False(t, s.expects(set, x))
				}
			}
		}
	}
}

// Slots up to the last one are expected, in the map of the clients that have them.
func TestSlotsAreExpectedUpToTheLast(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
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
	want := ok(servicemodel.NewTable(c))(t)
	s := h.reading(0, want)
	key := func(addr string) nft.Elem {
		return nft.Elem{Key: nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: 80})}
	}
	require.False(t, s.expects(s.position("services"), key("10.96.0.10")))
	require.True(t, s.expects(s.position("services"), key("10.96.0.20")))

	s.add("services", key("10.96.0.10"))
	require.Empty(t, s.contested())
	s.add("service-drop", key("10.96.0.20"))
	require.Len(t, s.contested(), 1)
}

// keyOf returns the frontend that an element belongs to.
func TestElementsAreAboutFrontends(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i := range nft.Families {
		s := h.reading(i, h.table)
		h.elements(i, func(set, _ string, e *nft.Elem) {
			key, ok := s.keyOf(s.position(set), *e)
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
				_, ok := s.keyOf(s.position(set), *e)
				require.False(t, ok, set)
			}
		}
	}
}

// An element is an address only if its key has no other bytes. The key of a hairpin has the address
// twice.
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

// A service port is contested if an element is left over that concerns it: an element of one of its
// frontends, or a frontend whose comment names the same service port. A service port that is gone
// is not contested.
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
		{"a set that is not known", "service-over-99", key("10.96.0.10", 80), ""},
	} {
		requireDoubt(t, h, tc.set, tc.elem, tc.want, tc.name)
	}
	s := h.reading(0, nil)
	s.add("service-drop", key("10.96.0.20", 80))
	require.Empty(t, s.contested(), "nothing is wanted")
}

// requireDoubt requires that an element that is left over makes the service ports of a service
// contested, or none.
func requireDoubt(t *testing.T, h *held, set string, e nft.Elem, want, what string) {
	t.Helper()
	s := h.reading(0, h.table)
	s.add(set, e)
	var names []string
	for _, u := range s.contested() {
		require.Equal(t, portOf(s.f, h.table, u[0].Service), u)
		names = append(names, u[0].Service.Name.Name)
	}
	if want == "" {
		require.Empty(t, names, what)
		return
	}
	require.Equal(t, []string{want}, names, what)
	again := e.Clone()
	again.Key = append(again.Key, 0, 0, 0, 9)
	s.add(set, again)
	require.Len(t, s.contested(), 1, "it is doubted once: %s", what)
	s.gone = []*servicemodel.Frontend{portOf(s.f, h.table, servicemodel.PortName{
		Name: servicemodel.Name{Namespace: "default", Name: want}, Port: "http",
		Protocol: servicemodel.TCP})[0]}
	require.Empty(t, s.contested(), what)
}

// A contested service port no longer counts as whole and has no changed pool. Its elements were
// counted before.
func TestWhatIsDoubtedIsTakenBack(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
	undo := h.swap(0, podOne, stranger, everywhere)
	defer undo()
	dbUndo := h.swap(0, netip.MustParseAddrPort("10.244.3.1:8080"), stranger, everywhere)
	defer dbUndo()
	h.ask(0, s, &questions{}, false, portsOf(s.f, h.table)...)
	require.Zero(t, left(s))
	found := slices.Clone(s.found)
	isWeb := func(c servicemodel.Change[servicemodel.Pool]) bool {
		return c.Old.ID.Service.Name.Name == "web"
	}
	require.True(t, slices.ContainsFunc(s.pools, isWeb))

	var web []servicePort
	for _, u := range portsOf(s.f, h.table) {
		if u[0].Service.Name.Name == "web" {
			web = append(web, u)
		}
	}
	again := &questions{}
	s.withdraw(web)
	h.ask(0, s, again, true, web...)
	require.Equal(t, found, s.found)
	require.Len(t, s.pools, 1)
	require.Equal(t, "db", s.pools[0].Old.ID.Service.Name.Name)
	require.Equal(t, []string{"web"}, services(s.gone))
	require.Equal(t, len(again.all), left(s))
}

// A reading asks for the slots of an unwanted frontend according to the sets that say its class.
func TestSlotsOfWhatIsLeftOverAreAskedFor(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, k := range kinds {
		s := h.reading(0, h.table)
		addr := "10.96.0.99"
		if k == kindNodePort {
			addr = "0.0.0.0"
		}
		key := nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: 99})
		add := func(set string, key []byte) { s.add(set, nft.Elem{Key: key}) }
		add(k.registry, key)
		c := &questions{}
		s.addSlots(c, k, key)
		require.Len(t, c.all, 4, "no set says that it has more than two slots")
		c.reset()

		add(k.prefix+"-over-2", key)
		add(k.prefix+"-over-4", append(slices.Clone(key[:len(key)-1]), 1)) // another frontend
		add(k.prefix+"-endpoints", nft.AppendSlot(slices.Clip(key), 1))    // already known
		s.addSlots(c, k, key)
		var got []string
		for _, a := range c.all {
			require.Equal(t, key, a.want.Key[:len(key)])
			got = append(got, s.sets[a.set].Name+string(rune('0'+slotIn(a.want))))
		}
		require.ElementsMatch(t, []string{k.prefix + "-endpoints0", k.prefix + "-endpoints2",
			k.prefix + "-endpoints3",
			k.prefix + "-external-endpoints0", k.prefix + "-external-endpoints1"}, got)
	}
}

// The found endpoints that are not wanted as hairpins are those of other pools and of maps, each
// once.
func TestWhichEndpointsMayBeHairpinsToo(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
	wanted := netip.MustParseAddr("10.244.1.1")
	require.True(t, nocopy.Of(h.table).HasHairpin(wanted))
	at := func(n byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, n}), 8080)
	}
	s.pools = []servicemodel.Change[servicemodel.Pool]{{New: &servicemodel.Pool{
		Slots: []servicemodel.Slot{{Endpoint: at(1)}, {Endpoint: podOne}, {Endpoint: at(1)}}}}}
	for n, set := range []string{"service-endpoints", "service-external-endpoints",
		"nodeport-endpoints", "nodeport-external-endpoints"} {
		s.add(set, nft.Elem{Key: []byte{1}, Data: nft.AppendEndpoint(nil, at(byte(n+2)))})
		s.add(set, nft.Elem{Key: []byte{2}, Data: nft.AppendEndpoint(nil, at(2))})
		s.add(set, nft.Elem{Key: []byte{3}, Data: nft.AppendEndpoint(nil, podOne)})
	}
	var want []netip.Addr
	for n := range byte(5) {
		want = append(want, at(n+1).Addr())
	}
	require.ElementsMatch(t, want, s.unwantedAddrs())
}

// An unwanted element that was asked for and found is noted and counted once.
func TestWhatIsLeftIsCountedOnce(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
	c := &questions{}
	for n := range 3 {
		c.add(s.position(setClusterIPs), nft.Elem{Key: []byte{10, 9, 9, byte(n)}})
	}
	c.all[0].answer(nft.Elem{Key: []byte{10, 9, 9, 0}, Data: []byte{7}})
	c.all[1].answer(nft.Elem{Key: []byte{10, 9, 9, 1}})
	s.noteUnwanted(c)
	s.noteUnwanted(c)
	require.Equal(t, 2, s.found[s.position(setClusterIPs)])
	l := s.elems[setClusterIPs]
	require.Len(t, l, 2)
	require.Equal(t, []byte{7}, l["\x0a\x09\x09\x00"].Data)
}

// A set is complete if the kernel tells its number of elements and as many were found.
func TestWhenASetIsComplete(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
	set := s.position(setClusterIPs)
	require.False(t, s.complete(set))
	s.found[set] = 2
	require.True(t, s.complete(set))
	s.found[set] = 3
	require.False(t, s.complete(set))
	delete(s.told, setClusterIPs)
	s.found[set] = 0
	require.False(t, s.complete(set), "it is not known how many there are")
	require.Negative(t, s.position("unknown"))
}
