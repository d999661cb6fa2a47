package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// What is in the kernel is what is wanted, without what is not there, and what else was found.
func TestTablesArePutTogether(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	units := unitsOf(nft.IPv4, h.table)
	web := units[slices.IndexFunc(units, func(u unit) bool {
		return u[0].Service.Name.Name == "web"
	})]
	var db *servicemodel.Pool
	for p := range h.table.Pools() {
		if p.ID.Service.Name.Name == "db" && p.ID.Family == servicemodel.IPv4 {
			db = p
		}
	}
	changed := &servicemodel.Pool{ID: db.ID, Slots: []servicemodel.Slot{{Endpoint: stranger,
		Weight: 1}}}
	clusterIP, hairpin := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.1.1")
	stray := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.99"), Protocol: servicemodel.TCP, Port: 80},
		Service:  servicemodel.PortName{Name: servicemodel.Name{Namespace: "x", Name: "stray"}},
		Internal: servicemodel.BalanceCluster, External: servicemodel.BalanceCluster}
	id, _ := stray.Pool(stray.Internal)
	left := servicemodel.Contents{Rules: h.table.Rules(),
		Frontends:  []*servicemodel.Frontend{stray},
		Pools:      []*servicemodel.Pool{{ID: id, Slots: changed.Slots}},
		ClusterIPs: []netip.Addr{stray.Key.Addr}, Hairpins: []netip.Addr{stranger.Addr()}}
	left.Rules.MasqueradeMark = 0x77

	four := &part{gone: web, pools: []servicemodel.PoolChange{{Old: db, New: changed}},
		addrs: map[string][]netip.Addr{setClusterIPs: {clusterIP}, setHairpins: {hairpin}}}
	got, err := assemble(h.table, [2]*part{four, nil}, left)
	require.NoError(t, err)

	want := servicemodel.Contents{Rules: left.Rules, Frontends: []*servicemodel.Frontend{stray},
		Pools:      []*servicemodel.Pool{left.Pools[0], changed},
		ClusterIPs: []netip.Addr{stray.Key.Addr}, Hairpins: []netip.Addr{stranger.Addr()}}
	h.addIPv4Of(&want, "db", clusterIP, hairpin)
	table, err := servicemodel.NewTable(want)
	require.NoError(t, err)
	require.Empty(t, servicemodel.Diff(got, table).String())
	require.True(t, got.Equal(table))

	for _, nobody := range []*servicemodel.Table{nil, h.table} { // only what is left over
		got, err = assemble(nobody, [2]*part{}, left)
		require.NoError(t, err)
		table, err = servicemodel.NewTable(left)
		require.NoError(t, err)
		require.True(t, got.Equal(table))
	}
	left.Frontends = append(left.Frontends, stray)
	_, err = assemble(h.table, [2]*part{four, nil}, left)
	require.Error(t, err, "a frontend twice")
}

// addIPv4Of adds the frontends of a service in IPv4 to contents, and all addresses of IPv4 but two.
func (h *held) addIPv4Of(want *servicemodel.Contents, service string, clusterIP,
	hairpin netip.Addr) {
	for fe := range h.table.Frontends() {
		if fe.Key.Family() == servicemodel.IPv4 && fe.Service.Name.Name == service {
			want.Frontends = append(want.Frontends, fe)
		}
	}
	for a := range h.table.ClusterIPs() {
		if a.Is4() && a != clusterIP {
			want.ClusterIPs = append(want.ClusterIPs, a)
		}
	}
	for a := range h.table.Hairpins() {
		if a.Is4() && a != hairpin {
			want.Hairpins = append(want.Hairpins, a)
		}
	}
}

// A set belongs to a number of slots or seconds if its name ends with that and is written as we
// write it.
func TestNumbersInNamesOfSets(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"service-size-1": 1, "service-size-500": 500,
		"service-size-2147483647": 1<<31 - 1, "service-size-0": 0, "service-size-01": 0,
		"service-size-": 0, "service-size--1": 0, "service-size-1a": 0, "5": 0,
		"service-size-2147483648": 0, "nodeport-size-5": 0} {
		n, ok := number(name, "service-size-")
		require.Equal(t, want > 0, ok, name)
		if ok {
			require.Equal(t, want, n)
		}
	}
}

// What is wrong with a table is told, and whether only making it anew helps.
func TestSkeletonsAreCompared(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, tc := range []struct {
		name  string
		spoil func(raw *rawTable)
		stale bool
		text  string
	}{
		{"it is dormant", func(raw *rawTable) { raw.dormant = true }, false,
			"table ip: it is dormant"},
		{"a set is missing", func(raw *rawTable) { delete(raw.sets, "service-drop") }, false,
			"table ip: set service-drop is missing"},
		{"a set is another", func(raw *rawTable) {
			raw.sets["service-drop"] = raw.sets["nodeport-drop"]
		}, false, "table ip: set service-drop is of another type"},
		{"a set is foreign", func(raw *rawTable) {
			raw.sets["mine"] = raw.sets["service-drop"]
		}, false, "table ip: set mine does not belong"},
		{"a chain is missing", func(raw *rawTable) { delete(raw.chains, "services") }, false,
			"table ip: chain services is missing"},
		{"a chain is another", func(raw *rawTable) {
			c := raw.chains["services"]
			c.Drops = true
			raw.chains["services"] = c
		}, false, "table ip: chain services has another hook or policy"},
		{"a chain is foreign", func(raw *rawTable) {
			raw.chains["mine"] = nft.Chain{Name: "mine"}
		}, false, "table ip: chain mine does not belong"},
		{"a rule is missing", func(raw *rawTable) {
			raw.hashes["services"] = raw.hashes["services"][1:]
		}, true, "table ip: the rules of chain services are not ours"},
		{"rules stand in another order", func(raw *rawTable) {
			slices.Reverse(raw.hashes["services"])
		}, true, "table ip: the rules of chain services are not ours"},
	} {
		raw := h.copyOf(0)
		sk, why := readSkeleton(nft.IPv4, raw, h.table.Rules())
		require.Empty(t, why)
		require.False(t, sk.stale || sk.broken)
		require.True(t, sk.exists)
		const large = "service-endpoints"
		require.Equal(t, len(h.tables[0].elems[large]), sk.counts[large])
		tc.spoil(raw)
		sk, why = readSkeleton(nft.IPv4, raw, h.table.Rules())
		require.Equal(t, []string{tc.text}, why, tc.name)
		require.Equal(t, tc.stale, sk.stale, tc.name)
		require.Equal(t, !tc.stale, sk.broken, tc.name)
	}
}

// Sets of rules, and the order of rules of which no two match the same packet, mean nothing. Maps
// that rules fill are not counted.
func TestSkeletonsMayDifferInWhatMeansNothing(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	raw := h.copyOf(0)
	raw.sets["__set0"], raw.counts["__set0"] = nft.SetSpec{}, 1
	raw.counts[affinityMap(3)] = 5
	slices.Reverse(raw.hashes["service"+balanceSuffix])
	require.Greater(t, len(raw.hashes["service"+balanceSuffix]), 1)
	sk, why := readSkeleton(nft.IPv4, raw, h.table.Rules())
	require.Empty(t, why)
	require.False(t, sk.stale || sk.broken)
	require.NotContains(t, sk.counts, "__set0")
	require.NotContains(t, sk.counts, affinityMap(3))
	require.Contains(t, sk.counts, setHairpins)
	sk, why = readSkeleton(nft.IPv4, nil, h.table.Rules())
	require.Equal(t, skeleton{}, sk, "no table")
	require.Empty(t, why)
}

// Without settings a table is made anew, and it is told what is wrong with them.
func TestTablesWithoutSettingsAreMadeAnew(t *testing.T) {
	t.Parallel()
	for text, spoil := range map[string]func(m map[string]*found){
		"table ip: no settings": func(m map[string]*found) { clear(m) },
		"table ip: the settings have gaps": func(m map[string]*found) {
			delete(m, string(nft.Native32(1)))
		},
		"what is this": func(m map[string]*found) {
			m[string(nft.Native32(1))].UserData = nft.AppendComment(nil, "what is this")
		},
	} {
		h := holding(t, unitsState())
		spoil(h.tables[0].elems[setSettings])
		b := newMemoryBackend(h.memory)
		o := b.observe()
		require.Contains(t, o.Drift[len(o.Drift)-1], text)
		require.True(t, b.pl.have[0].broken)
		require.False(t, b.pl.have[1].broken)
		for fe := range o.Table.Frontends() {
			require.Equal(t, servicemodel.IPv6, fe.Key.Family())
		}
		b.commit(servicemodel.Diff(o.Table, h.table.Arrange(o.Table)))
		require.Empty(t, newMemoryBackend(h.memory).observe().Drift)
	}
}

// Of two tables that were made for different settings, that of IPv6 is made anew, and nothing in it
// counts.
func TestTablesOfDifferentSettingsAreNotMixed(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	other := &memory{t: t}
	node := goldenNode()
	node.MasqueradeMark = 0x40
	newMemoryBackend(other).apply(nil, unitsState().WithNode(node))
	h.tables[1] = other.tables[1]
	b := newMemoryBackend(h.memory)
	o := b.observe()
	require.Equal(t, []string{"the tables ip and ip6 were made for different settings"}, o.Drift)
	require.True(t, o.Table.Rules().Equal(h.table.Rules()))
	require.Equal(t, h.table.Rules(), b.rules)
	require.Positive(t, o.Table.Len())
	for fe := range o.Table.Frontends() {
		require.Equal(t, servicemodel.IPv4, fe.Key.Family())
	}
	for a := range o.Table.ClusterIPs() {
		require.True(t, a.Is4())
	}
	b.commit(servicemodel.Diff(o.Table, h.table.Arrange(o.Table)))
	next := newMemoryBackend(h.memory).observe()
	require.Empty(t, next.Drift)
	requireHolds(t, next.Table, h.table.Arrange(next.Table))
}

// Tables that lack the version, or of which a set was full, are made anew, both of them.
func TestBothTablesAreMadeAnew(t *testing.T) {
	t.Parallel()
	for text, spoil := range map[string]func(h *held, b *memoryBackend){
		"the tables have no version": func(h *held, _ *memoryBackend) {
			clear(h.tables[0].elems[versionSet(firstEpoch()).Name])
		},
		"a set is full": func(_ *held, b *memoryBackend) { b.crowded = true },
	} {
		h := holding(t, unitsState())
		b := newMemoryBackend(h.memory)
		spoil(h, b)
		o := b.observe()
		require.Equal(t, []string{text}, o.Drift)
		require.Zero(t, o.Table.Len())
		_, p := b.apply(o.Table, unitsState())
		require.True(t, p.families[0].rebuild && p.families[1].rebuild)
		require.False(t, b.crowded)
		require.Empty(t, newMemoryBackend(h.memory).observe().Drift)
	}
	h := holding(t, unitsState())
	h.tables[0] = nil
	b := newMemoryBackend(h.memory)
	o := b.observe()
	require.Equal(t, []string{"the tables have no version"}, o.Drift)
	b.apply(o.Table, servicemodel.State{}.WithNode(goldenNode()))
	require.NotNil(t, h.tables[0], "the table of IPv4 has the version, also without services")
	require.Equal(t, uint32(1), memoryVersion(h.tables[0]).number)

	b = newMemoryBackend(&memory{t: t})
	require.Empty(t, b.observe().Drift, "nothing needs no version")
}

// Whatever is done to one element: each element belongs to a frontend that is whole, or is drift,
// and only frontends that it has to do with are not whole. The next commit puts it right.
func TestEveryElementHasItsPlaceOrIsDrift(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	edits := map[string]func(m map[string]*found, key string){
		"deleted": func(m map[string]*found, key string) { delete(m, key) },
		"another comment": func(m map[string]*found, key string) {
			m[key].UserData = nft.AppendComment(nil, "default/db:http cluster IP verdict=reject")
		},
		"other data": func(m map[string]*found, key string) {
			e := m[key]
			if e.Data = slices.Clone(e.Data); e.Data != nil {
				e.Data[1] ^= 1
			}
		},
		"one more": func(m map[string]*found, key string) {
			e := cloneElem(m[key].Elem)
			e.Key[0] ^= 0x40
			m[string(e.Key)+string(e.KeyEnd)] = &found{Elem: e}
		},
	}
	for i := range nft.Families {
		h.elements(i, func(set, key string, _ *found) {
			for name, edit := range edits {
				m := &memory{t: t, tables: [2]*rawTable{h.copyOf(0), h.copyOf(1)}}
				edit(m.tables[i].elems[set], key)
				lost := requirePlaces(t, m, h, name+": "+set)
				if name == "deleted" { // of two that contradict each other, either may be right
					require.LessOrEqual(t, lost, 1, set)
				}
			}
		})
	}
}

// requirePlaces requires that every element has its place or is drift, and that a commit puts all
// right. It returns how many frontends were not whole.
func requirePlaces(t *testing.T, m *memory, h *held, what string) int {
	t.Helper()
	b := newMemoryBackend(m)
	o := b.observe()
	fresh := newMemoryBackend(&memory{t: t})
	fresh.commit(servicemodel.Diff(nil, o.Table))
	drift := 0
	for i, raw := range m.tables {
		for set, l := range raw.elems {
			if !isRead(set) {
				continue
			}
			n := 0
			if d := b.pl.drift[i][set]; d != nil {
				n = d.Len
			}
			drift += n
			if len(l) != n+len(fresh.memory.tables[i].elems[set]) {
				t.Fatalf("%s: of set %s, elements have no place", what, set)
			}
		}
	}
	require.Len(t, o.Drift, drift, what)
	services := map[string]bool{}
	lost := 0
	for fe := range h.table.Frontends() {
		if o.Table.Frontend(fe.Key) == nil {
			services[fe.Service.Name.Name] = true
			lost++
		}
	}
	require.LessOrEqual(t, len(services), 1, what)
	want := h.table.Arrange(o.Table)
	b.commit(servicemodel.Diff(o.Table, want))
	next := newMemoryBackend(m)
	again := next.observe()
	require.Empty(t, again.Drift, what)
	requireHolds(t, again.Table, want)
	return lost
}

// A slot that no pool can have, and data that is not an endpoint, are read as none.
func TestOnlyEndpointsInSlotsAreRead(t *testing.T) {
	t.Parallel()
	key := nft.AppendFrontend(nil, servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80})
	raw := newRawTable(DefaultTable)
	add := func(slot int, data []byte) {
		raw.add("service-endpoints", nft.Elem{Key: nft.AppendSlot(slices.Clip(key), slot),
			Data: data})
	}
	add(0, []byte{1})
	add(1, nft.AppendEndpoint(nil, podOne))
	add(maxSlots, nft.AppendEndpoint(nil, podTwo))
	raw.add("service-endpoints", nft.Elem{Key: []byte{1}, Data: nft.AppendEndpoint(nil, podTwo)})
	r := &reading{f: nft.IPv4, elems: raw.elems}
	require.Equal(t, map[string][]netip.AddrPort{string(key): {{}, podOne}},
		r.readSlots("service-endpoints"))
}

// A range that no prefix is, and keys that are none, are read as no source.
func TestOnlyRangesOfPrefixesAreRead(t *testing.T) {
	t.Parallel()
	key := nft.AppendFrontend(nil, servicemodel.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80})
	with := func(addr ...byte) []byte { return append(slices.Clip(key), addr...) }
	raw := newRawTable(DefaultTable)
	for _, e := range []nft.Elem{
		{Key: with(192, 0, 2, 0), KeyEnd: with(192, 0, 2, 255)},
		{Key: with(198, 51, 100, 1), KeyEnd: with(198, 51, 100, 2)},
		{Key: with(203, 0, 113, 0)},
		{Key: []byte{1}, KeyEnd: []byte{2}},
	} {
		raw.add(setSources, e)
	}
	r := &reading{f: nft.IPv4, elems: raw.elems}
	require.Equal(t, map[string][]netip.Prefix{
		string(key): {netip.MustParsePrefix("192.0.2.0/24")}}, r.readRanges())
}
