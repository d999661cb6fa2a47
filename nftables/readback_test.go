package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// The drift names every fault of a table. Some faults require replacing the table.
func TestSkeletonsAreCompared(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, tc := range []struct {
		name  string
		spoil func(raw *read.Reading)
		stale bool
		text  string
	}{
		{"it is dormant", func(raw *read.Reading) { raw.Dormant = true }, false,
			"table ip: it is dormant"},
		{"a set is missing", func(raw *read.Reading) { delete(raw.Specs, "service-drop") }, false,
			"table ip: set service-drop is missing"},
		{"a set is another", func(raw *read.Reading) {
			raw.Specs["service-drop"] = raw.Specs["nodeport-drop"]
		}, false, "table ip: set service-drop is of another type"},
		{"a set is foreign", func(raw *read.Reading) {
			raw.Specs["mine"] = raw.Specs["service-drop"]
		}, false, "table ip: set mine does not belong"},
		{"a chain is missing", func(raw *read.Reading) { delete(raw.Chains, "services") }, false,
			"table ip: chain services is missing"},
		{"a chain is another", func(raw *read.Reading) {
			c := raw.Chains["services"]
			c.Drops = true
			raw.Chains["services"] = c
		}, false, "table ip: chain services has another hook or policy"},
		{"a chain is foreign", func(raw *read.Reading) {
			raw.Chains["mine"] = nft.Chain{Name: "mine"}
		}, false, "table ip: chain mine does not belong"},
		{"a rule is missing", func(raw *read.Reading) {
			raw.Hashes["services"] = raw.Hashes["services"][1:]
		}, true, "table ip: the rules of chain services differ from what kernlb writes " +
			"(1 missing, 0 foreign); missing: ip daddr . meta l4proto . th dport @restricted " +
			"ip daddr . meta l4proto . th dport . ip saddr != @sources drop"},
		{"a rule is foreign", func(raw *read.Reading) {
			raw.Hashes["services"] = append(slices.Clone(raw.Hashes["services"]), 0, 0)
		}, true, "table ip: the rules of chain services differ from what kernlb writes " +
			"(0 missing, 2 foreign)"},
		{"rules stand in another order", func(raw *read.Reading) {
			slices.Reverse(raw.Hashes["services"])
		}, true, "table ip: the rules of chain services differ from what kernlb writes " +
			"(0 missing, 0 foreign)"},
	} {
		raw := h.copyOf(0)
		raw.Recognize(raw.Program())
		require.Empty(t, raw.Text)
		require.False(t, raw.Stale || raw.Broken)
		const large = "service-endpoints"
		require.Equal(t, len(h.tables[0].Elems[large]), raw.Counts[large])
		raw = h.copyOf(0)
		tc.spoil(raw)
		raw.Recognize(raw.Program())
		require.Equal(t, []string{tc.text}, raw.Text, tc.name)
		require.Equal(t, tc.stale, raw.Stale, tc.name)
		require.Equal(t, !tc.stale, raw.Broken, tc.name)
	}
}

// Anonymous sets have no meaning. Maps that are filled by rules are not counted.
func TestSkeletonsMayDifferInWhatMeansNothing(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	raw := h.copyOf(0)
	raw.Specs["__set0"], raw.Lengths["__set0"] = nft.SetSpec{}, 1
	raw.Lengths[form.AffinityMap(form.GroupClients, 3)] = 5
	raw.Recognize(raw.Program())
	require.Empty(t, raw.Text)
	require.False(t, raw.Stale || raw.Broken)
	require.NotContains(t, raw.Counts, "__set0")
	require.NotContains(t, raw.Counts, form.AffinityMap(form.GroupClients, 3))
	require.Contains(t, raw.Counts, form.SetHairpins)
}

// A table without valid settings is replaced, and the drift names the fault.
func TestTablesWithoutSettingsAreMadeAnew(t *testing.T) {
	t.Parallel()
	for text, spoil := range map[string]func(m map[string]*nft.Elem){
		"table ip: no settings": func(m map[string]*nft.Elem) { clear(m) },
		"table ip: the settings have gaps": func(m map[string]*nft.Elem) {
			delete(m, string(nft.Native32(1)))
		},
		"what is this": func(m map[string]*nft.Elem) {
			m[string(nft.Native32(1))].UserData = nft.AppendComment(nil, "what is this")
		},
	} {
		h := holding(t, unitsState())
		spoil(h.tables[0].Elems[form.SetSettings])
		b := newMemoryBackend(h.memory)
		o := b.observe()
		require.Contains(t, o.Drift[len(o.Drift)-1], text)
		require.True(t, b.pl.Tables[0].Broken)
		require.False(t, b.pl.Tables[1].Broken)
		for fe := range o.Table.Frontends() {
			require.Equal(t, servicemodel.IPv6, fe.Key.Family())
		}
		b.commit(servicemodel.Diff(o.Table, h.table.Arrange(o.Table)))
		require.Empty(t, newMemoryBackend(h.memory).observe().Drift)
	}
}

// If the two tables were made for different settings, the IPv6 table is replaced, and its contents
// are ignored.
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
	require.Equal(t, h.table.Rules(), b.pl.Rules)
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

// If the tables lack the version, or one of their sets was full, both are replaced.
func TestBothTablesAreMadeAnew(t *testing.T) {
	t.Parallel()
	for text, spoil := range map[string]func(h *held, b *memoryBackend){
		"the tables have no version": func(h *held, _ *memoryBackend) {
			clear(h.tables[0].Elems[form.VersionSet(firstEpoch()).Name])
		},
		"a set is full": func(_ *held, b *memoryBackend) { b.crowded = true },
	} {
		h := holding(t, unitsState())
		b := newMemoryBackend(h.memory)
		spoil(h, b)
		o := b.observe()
		require.Equal(t, []string{text}, o.Drift)

		// the contents of a full set are right
		require.Equal(t, text == "a set is full", o.Table.Len() > 0)
		_, p := b.apply(o.Table, unitsState())
		require.True(t, p.Tables[0].Renew && p.Tables[1].Renew)
		require.False(t, b.crowded)
		require.Empty(t, newMemoryBackend(h.memory).observe().Drift)
	}

	h := holding(t, unitsState())
	h.tables[0] = nil
	b := newMemoryBackend(h.memory)
	o := b.observe()
	require.Equal(t, []string{"the tables have no version"}, o.Drift)
	b.apply(o.Table, servicemodel.State{}.WithNode(goldenNode()))
	require.Nil(t, h.tables[0], "the table that is left has the version")
	require.Equal(t, uint32(1), memoryVersion(h.tables[:]...).Number)

	b = newMemoryBackend(&memory{t: t})
	require.Empty(t, b.observe().Drift, "nothing needs no version")
}

// After any change to one element, each element belongs to a whole frontend or is drift, and only
// related frontends are incomplete. The drift names a deleted element. The next commit repairs the
// damage.
func TestEveryElementHasItsPlaceOrIsDrift(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	edits := map[string]func(m map[string]*nft.Elem, key string){
		"deleted": func(m map[string]*nft.Elem, key string) { delete(m, key) },
		"another comment": func(m map[string]*nft.Elem, key string) {
			m[key].UserData = nft.AppendComment(nil, "default/db:http cluster IP verdict=reject")
		},
		"other data": func(m map[string]*nft.Elem, key string) {
			e := m[key]
			if e.Data = slices.Clone(e.Data); e.Data != nil {
				e.Data[1] ^= 1
			}
		},
		"one more": func(m map[string]*nft.Elem, key string) {
			e := m[key].Clone()
			e.Key[0] ^= 0x40
			m[string(e.Key)+string(e.KeyEnd)] = &e
		},
	}
	for i := range nft.Families {
		h.elements(i, func(set, key string, _ *nft.Elem) {
			for name, edit := range edits {
				m := &memory{t: t, tables: [2]*read.Reading{h.copyOf(0), h.copyOf(1)}}
				edit(m.tables[i].Elems[set], key)
				if name == "deleted" {
					requireNamed(t, m, i, set, *h.tables[i].Elems[set][key])
				}
				lost := requirePlaces(t, m, h, name+": "+set)
				if name == "deleted" { // if two contradict each other, either may be right
					require.LessOrEqual(t, lost, 1, set)
				}
			}
		})
	}
}

// requireNamed requires that the drift names a missing element, before the elements that are left
// of its frontend. A single element that is left may look foreign itself, and source ranges without
// their frontend in "restricted" are named instead.
func requireNamed(t *testing.T, m *memory, family int, set string, missing nft.Elem) {
	t.Helper()
	b := newMemoryBackend(m)
	o := b.observe()
	if len(o.Drift) < 2 || set == "restricted" {
		return
	}
	sets := form.SetsOf(nft.Families[family], &b.pl.Tables[family].Shape)
	i := slices.IndexFunc(sets, func(s *nft.Set) bool { return s.Name == set })
	require.Contains(t, o.Drift[0], set+" has no element "+
		sets[i].ElemText(nft.Elem{Key: missing.Key, KeyEnd: missing.KeyEnd}))
}

// Any single element may be missing, whatever the scheduler of its service.
func TestAnyElementMayBeMissing(t *testing.T) {
	t.Parallel()
	s := servicemodel.State{}.WithNode(goldenNode())
	for i, name := range slices.Sorted(maps.Keys(form.SchedulerWays)) {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Name, s.Scheduler = "s"+fmt.Sprint(i), servicemodel.Scheduler(name)
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
			s.Ports[0].NodePort += uint16(i)
		})
		eps := goldenEndpoints("10.244.1.1", "10.244.1.2", "10.244.1.3")
		eps[1].Weight = 1 + uint16(i%2)
		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	h, tried := holding(t, s), map[string]int{}
	h.elements(0, func(set, key string, _ *nft.Elem) {
		if tried[set]++; tried[set] > 24 {
			return // the tables of mh have thousands
		}
		m := &memory{t: t, tables: [2]*read.Reading{h.copyOf(0), h.copyOf(1)}}
		delete(m.tables[0].Elems[set], key)
		requireRepaired(t, m, h, set)
	})
}

// Whatever another program does to elements of any state, the state is read, and the next commit
// repairs the damage.
func TestAnyDamageToElementsIsRepaired(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 9))
	for range 5 {
		h := holding(t, randstate.New(randomConfig(), rng).State())
		for range 10 {
			m := &memory{t: t, tables: [2]*read.Reading{h.copyOf(0), h.copyOf(1)}}
			requireRepaired(t, m, h, damage(m, rng))
		}
	}
}

// requireRepaired requires that a commit repairs damage to what h holds.
func requireRepaired(t *testing.T, m *memory, h *held, what string) {
	t.Helper()
	b := newMemoryBackend(m)
	o := b.observe()
	want := h.table.Arrange(o.Table)
	b.commit(servicemodel.Diff(o.Table, want))
	again := newMemoryBackend(m).observe()
	require.Empty(t, again.Drift, what)
	requireHolds(t, again.Table, want)
}

// damage changes up to four elements, mostly of one set, and describes the changes.
func damage(m *memory, rng *rand.Rand) (what string) {
	i := rng.IntN(2)
	sets := slices.Sorted(maps.Keys(m.tables[i].Elems))
	set := sets[rng.IntN(len(sets))]
	for range 1 + rng.IntN(4) {
		l := m.tables[i].Elems[set]
		keys := slices.Sorted(maps.Keys(l))
		if len(keys) == 0 {
			return what
		}
		key := keys[min(rng.IntN(len(keys)), rng.IntN(len(keys)))] // slot 0 is early
		e := l[key].Clone()
		kind := rng.IntN(4)
		what += fmt.Sprintf("set %s, element %x, kind %d; ", set, key, kind)
		switch delete(l, key); kind {
		case 1:
			e.UserData = nft.AppendComment(nil, "scheduler=mh slot=1 weight=7")
			l[key] = &e
		case 2:
			if len(e.Data) > 1 {
				e.Data[1] ^= 1
				l[key] = &e
			}
		case 3:
			e.Key[rng.IntN(len(e.Key))] ^= 1 << rng.IntN(8)
			l[string(e.Key)+string(e.KeyEnd)] = &e
		}
	}

	return what
}

// requirePlaces requires that every element has its place or is drift, and that a commit repairs
// everything. It returns the number of incomplete frontends.
func requirePlaces(t *testing.T, m *memory, h *held, what string) int {
	t.Helper()
	b := newMemoryBackend(m)
	o := b.observe()
	fresh := newMemoryBackend(&memory{t: t})
	fresh.commit(servicemodel.Diff(nil, o.Table))
	drift := 0
	for i, raw := range m.tables {
		for set, l := range raw.Elems {
			if !read.IsRead(set) {
				continue
			}
			n := 0
			if d := b.pl.Tables[i].Drift[set]; d != nil {
				n = d.Len
			}
			drift += n
			if len(l) != n+len(fresh.memory.tables[i].Elems[set]) {
				t.Fatalf("%s: of set %s, elements have no place", what, set)
			}
		}
	}

	elements, lacks := 0, 0
	for _, text := range o.Drift {
		if strings.Contains(text, ": element ") {
			elements++
		} else if strings.Contains(text, " has no element ") {
			lacks++
		}
	}

	require.Equal(t, drift, elements, what)
	require.Len(t, o.Drift, elements+lacks, what)
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

// Slots that no pool can have, and data that is not an endpoint, are ignored.
func TestOnlyEndpointsInSlotsAreRead(t *testing.T) {
	t.Parallel()
	key := nft.AppendFrontend(nil, tcpKey("10.96.0.1:80"))
	r := read.NewReading(nft.IPv4, defaultTable)
	add := func(slot int, data []byte) {
		r.Add("service-endpoints", nft.Elem{Key: nft.AppendSlot(slices.Clip(key), slot),
			Data: data})
	}

	add(0, []byte{1})
	add(1, nft.AppendEndpoint(nil, podOne))
	add(form.MaxSlots, nft.AppendEndpoint(nil, podTwo))
	r.Add("service-endpoints", nft.Elem{Key: []byte{1}, Data: nft.AppendEndpoint(nil, podTwo)})
	require.Equal(t, map[string][]form.Entry{string(key): {{}, {Endpoint: podOne, Slot: -1}}},
		r.ReadSlots(form.KindService, "service-endpoints"))
}

// Ranges that are not prefixes, and keys of no frontend, are not read as sources.
func TestOnlyRangesOfPrefixesAreRead(t *testing.T) {
	t.Parallel()
	key := nft.AppendFrontend(nil, tcpKey("10.96.0.1:80"))
	with := func(addr ...byte) []byte { return append(slices.Clip(key), addr...) }
	r := read.NewReading(nft.IPv4, defaultTable)
	for _, e := range []nft.Elem{
		{Key: with(192, 0, 2, 0), KeyEnd: with(192, 0, 2, 255)},
		{Key: with(198, 51, 100, 1), KeyEnd: with(198, 51, 100, 2)},
		{Key: with(203, 0, 113, 0)},
		{Key: []byte{1}, KeyEnd: []byte{2}},
	} {
		r.Add(form.KindService.SetSources(), e)
	}

	require.Equal(t, map[string][]netip.Prefix{
		string(key): {netip.MustParsePrefix("192.0.2.0/24")}}, r.ReadRanges())
}
