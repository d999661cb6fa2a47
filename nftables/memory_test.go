package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// memory is a kernel in memory, to which plans are written. Like the kernel, it refuses to add an
// object that exists, and to delete an object that does not exist.
type memory struct {
	t      testing.TB
	tables [2]*read.Reading
	// drops counts the messages that delete something or flush a chain.
	drops int
}

// do executes a plan.
func (m *memory) do(p *plan.Plan) {
	to := plan.Writers{}
	for i, f := range nft.Families {
		to[f] = &memoryTable{m, i, f}
	}
	p.Write(to)
	for _, raw := range m.tables {
		if raw == nil {
			continue
		}
		for name := range raw.Specs {
			raw.Lengths[name] = len(raw.Elems[name])
		}
	}
}

// copyOf returns a copy of a table that a reading can work on.
func (m *memory) copyOf(i int) *read.Reading {
	from := m.tables[i]
	if from == nil {
		return read.NewReading(nft.Families[i], defaultTable)
	}
	raw := read.NewReading(from.Family, from.Name)
	raw.Exists = true
	for name, spec := range from.Specs {
		raw.Specs[name], raw.Lengths[name] = spec, len(from.Elems[name])
	}
	for name, c := range from.Chains {
		raw.Chains[name], raw.Hashes[name] = c, slices.Clone(from.Hashes[name])
	}
	for set, elems := range from.Elems {
		for _, e := range elems {
			raw.Add(set, *e)
		}
	}

	return raw
}

// memoryTable is one of the tables. Plans write to it.
type memoryTable struct {
	*memory
	i int
	f *nft.Family
}

func (m *memoryTable) raw() *read.Reading {
	m.must(m.tables[m.i] != nil, "there is no table")
	return m.tables[m.i]
}

// must ends the test if the kernel would refuse a message. It is faster than the functions of
// require, which matters for thousands of elements.
func (m *memoryTable) must(ok bool, format string, args ...any) {
	m.t.Helper()
	if !ok {
		m.t.Fatalf("table %s: "+format, append([]any{m.f.Name}, args...)...)
	}
}

// mustHave requires that a map has a key.
func mustHave[V any](m *memoryTable, in map[string]V, key string) {
	m.t.Helper()
	_, ok := in[key]
	m.must(ok, "%q is not there", key)
}

func (m *memoryTable) AddTable() {
	m.must(m.tables[m.i] == nil, "it is there")
	m.tables[m.i] = read.NewReading(m.f, defaultTable)
}

func (m *memoryTable) DeleteTable() {
	m.raw()
	m.tables[m.i] = nil
	m.drops++
}

func (m *memoryTable) AddSet(s *nft.Set) {
	m.must(!m.raw().Has(s.Name), "set %s is there", s.Name)
	m.raw().Specs[s.Name] = s.Spec()
	if s.Size > 0 {
		m.raw().Sizes[s.Name] = s.Size
	}
}

func (m *memoryTable) DeleteSet(s *nft.Set) {
	mustHave(m, m.raw().Specs, s.Name)
	delete(m.raw().Specs, s.Name)
	delete(m.raw().Sizes, s.Name)
	delete(m.raw().Elems, s.Name)
	delete(m.raw().Lengths, s.Name)
	m.drops++
}

func (m *memoryTable) Elements(op nft.Op, s *nft.Set, l *nft.ElemList) {
	l.Each(func(e nft.Elem) {
		if op == nft.Delete {
			key := string(e.Key) + string(e.KeyEnd)
			mustHave(m, m.raw().Elems[s.Name], key)
			delete(m.raw().Elems[s.Name], key)
			m.drops++
			return
		}

		mustHave(m, m.raw().Specs, s.Name)
		if e.Goto {
			mustHave(m, m.raw().Chains, string(e.Data))
		}
		m.must(m.raw().Add(s.Name, e), "set %s: an element is there", s.Name)
	})
}

func (m *memoryTable) FlushSet(s *nft.Set) {
	mustHave(m, m.raw().Specs, s.Name)
	delete(m.raw().Elems, s.Name)
	m.drops++
}

func (m *memoryTable) AddChain(c *nft.Chain) { m.raw().Chains[c.Name] = *c }

func (m *memoryTable) FlushChain(name string) {
	mustHave(m, m.raw().Chains, name)
	m.raw().Hashes[name] = nil
	m.drops++
}

func (m *memoryTable) DeleteChain(name string) {
	mustHave(m, m.raw().Chains, name)
	m.must(len(m.raw().Hashes[name]) == 0, "chain %s has rules", name)
	for set, elems := range m.raw().Elems {
		for _, e := range elems {
			m.must(!e.Goto || string(e.Data) != name, "set %s leads to chain %s", set, name)
		}
	}

	delete(m.raw().Chains, name)
	delete(m.raw().Hashes, name)
}

func (m *memoryTable) AddRule(chain string, r nft.Rule) {
	mustHave(m, m.raw().Chains, chain)
	m.raw().Hashes[chain] = append(m.raw().Hashes[chain], r.Hash())
}

// memoryBackend is a backend whose kernel is in memory.
type memoryBackend struct {
	backend
	memory *memory
}

func newMemoryBackend(m *memory) *memoryBackend {
	return &memoryBackend{backend{pl: plan.NewPlanner(defaultTable, firstEpoch)}, m}
}

// observe reads everything, as if no table were wanted.
func (b *memoryBackend) observe() *backends.Observation {
	s := &read.Snapshot{}
	for i := range nft.Families {
		r := b.memory.copyOf(i)
		if r.Exists {
			r.Recognize(r.Program())
		}
		s.Tables = append(s.Tables, r)
	}

	s.Version = memoryVersion(s.Tables...)
	s.Compare(b.crowded)
	return b.remember(s, ok(s.Merge(nil))(b.memory.t))
}

// memoryVersion returns the version of tables, or no version if there are several or if it is
// damaged.
func memoryVersion(tables ...*read.Reading) (v form.Version) {
	found := 0
	for _, raw := range tables {
		if raw == nil {
			continue
		}
		for name, spec := range raw.Specs {
			if epoch, ok := form.EpochOf(name, spec); ok {
				var elems []nft.Elem
				for _, e := range raw.Elems[name] {
					elems = append(elems, *e)
				}
				v, _ = form.VersionOf(raw.Family, epoch, elems)
				found++
			}
		}
	}

	if found != 1 {
		return form.Version{}
	}
	return v
}

// firstEpoch is the epoch of tests with a single writer.
func firstEpoch() uint32 { return 41 }

// commit commits a change set.
func (b *memoryBackend) commit(c *servicemodel.ChangeSet) *plan.Plan {
	p := b.pl.Plan(c)
	b.memory.do(p)
	b.committed(p)
	return p
}

// apply writes a state to memory, as a change of held.
func (b *memoryBackend) apply(held *servicemodel.Table, s servicemodel.State) (
	*servicemodel.Table, *plan.Plan) {
	want := ok(servicemodel.Resolve(nil, s))(b.memory.t)
	if held != nil {
		want = want.Arrange(held)
	}
	return want, b.commit(servicemodel.Diff(held, want))
}

// randomConfig configures random states.
func randomConfig() randstate.Config {
	c := randstate.Config{Services: 12, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Ranges: true, NodeRanges: true, Shifted: true, Edit: randstate.ForRanges,
		Schedulers: []servicemodel.Scheduler{"", "", "", "", "", "", servicemodel.Random, "rr",
			"rr", "wrr", "sh", "sh+port", "sh+fallback", "mh"}}
	for i := range 8 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2)})
	}

	c.Nodes = []servicemodel.Node{
		{Name: "node-0", Zone: "z0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}},
		{Name: "node-1", Zone: "z1", LocalPods: servicemodel.PodDetector{
			CIDRs: prefixes("10.244.0.0/16", "fd00:10:244::/56")},
			ServiceCIDRs: prefixes("10.96.0.0/16")},
		{Name: "node-0", MasqueradeAll: true, MasqueradeMark: 1,
			NodePortAddresses: servicemodel.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24")}},
		{Name: "node-0", LocalPods: servicemodel.PodDetector{Bridge: "cni0"}},
		{Name: "node-0", OnlyFamily: servicemodel.IPv4, ServiceCIDRs: prefixes("fd00::/64")},
		{Name: "node-0", OnlyFamily: servicemodel.IPv6},
		{Name: "node-0", NoEndpoints: "drop", Forbidden: "reset"},
	}
	c.Node = c.Nodes[0]
	return c
}

// A sequence of plans has the same result as one plan for empty tables, except for sets of classes
// that are no longer in use. A reading finds exactly this result.
func TestPlansLeaveWhatTheyWouldWriteFromNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			g := randstate.New(randomConfig(), rand.New(rand.NewPCG(seed, 3)))
			m := &memory{t: t}
			b := newMemoryBackend(m)
			s := g.State()
			table, _ := b.apply(nil, s)
			for step := range 40 {
				s = g.Change(s)
				table, _ = b.apply(table, s)
				require.Equal(t, table.Rules(), b.pl.Rules)
				requireCounts(t, b, step)
				if step%8 != 7 {
					continue
				}
				next := newMemoryBackend(m)
				o := next.observe()
				require.Empty(t, o.Drift)
				require.Equal(t, b.pl.Version, next.pl.Version)
				table = requireHolds(t, o.Table, table)
				fresh := newMemoryBackend(&memory{t: t})
				fresh.commit(servicemodel.Diff(nil, table))
				requireSameElements(t, fresh.memory, m)
				if step == 15 {
					b = next
				}
			}
		})
	}
}

// A set that begins with many elements has room for at least twice as many, because the kernel
// fills a hash table of the right size faster than a growing table. Smaller sets, and sets of
// ranges, which are trees, grow. The version and maps of remembered clients have fixed sizes.
func TestLargeSetsHaveRoomFromTheStart(t *testing.T) {
	t.Parallel()
	raw := holding(t, proportion.Many(plan.Growing, func(*servicemodel.Service) {})).tables[0]
	large := 0
	for name, n := range raw.Lengths {
		size, flags := raw.Sizes[name], raw.Specs[name].Flags
		switch {
		case form.IsVersion(name), flags&nft.SetEval != 0:
		case n >= plan.Growing && flags&nft.SetInterval == 0:
			large++
			require.GreaterOrEqual(t, size, uint32(2*n), name)
		default:
			require.Zero(t, size, name)
		}
	}

	require.Greater(t, large, 3)
}

// requireHolds requires that a reading returns the written table, except fields that the kernel
// does not hold, and returns the table from the reading.
func requireHolds(t *testing.T, got, want *servicemodel.Table) *servicemodel.Table {
	t.Helper()
	c := servicemodel.Diff(got, want)
	require.Empty(t, c.Frontends)
	require.Empty(t, c.Pools)
	require.Empty(t, c.ClusterIPs)
	require.Empty(t, c.Hairpins)
	require.Nil(t, c.Rules)
	return got
}

// requireCounts requires that the known numbers of elements are right.
func requireCounts(t *testing.T, b *memoryBackend, step int) {
	t.Helper()
	for i, raw := range b.memory.tables {
		require.Equal(t, raw != nil, b.pl.Tables[i].Exists)
		if raw == nil {
			continue
		}
		for name, n := range b.pl.Tables[i].Counts {
			require.Equal(t, raw.Lengths[name], n, "step %d, family %d, set %s", step, i, name)
		}
		sh := read.ShapeOf(raw)
		require.True(t, b.pl.Tables[i].Shape.Equal(&sh))
	}
}

// requireSameElements requires that two kernels have the same elements, except the version.
func requireSameElements(t *testing.T, want, got *memory) {
	t.Helper()
	for i := range nft.Families {
		if want.tables[i] == nil {
			if got.tables[i] != nil { // both have the table
				for name, l := range got.tables[i].Elems {
					if name != form.SetSettings && !form.IsVersion(name) {
						require.Empty(t, l, name)
					}
				}
			}

			continue
		}

		for name, l := range got.tables[i].Elems {
			if !form.IsVersion(name) {
				require.Equal(t, slices.Sorted(maps.Keys(want.tables[i].Elems[name])),
					slices.Sorted(maps.Keys(l)), name)
			}
		}

		for name, l := range want.tables[i].Elems {
			for key, e := range l {
				if !form.IsVersion(name) {
					require.Equal(t, e, got.tables[i].Elems[name][key], name)
				}
			}
		}
	}
}
