package nftables

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// dumpAll is the reference for the other readings: it dumps everything and knows no wanted table.
func dumpAll(ctx context.Context, b *backend) (*backends.Observation, error) {
	s, err := b.kernel.reader.Tables(ctx, b.pl.Table, b.crowded)
	if err != nil {
		return nil, err
	}
	for _, r := range s.Tables {
		if r.Stands() {
			if err := dumpSets(ctx, b, r); err != nil {
				return nil, err
			}
		}
	}

	return merge(b, s, nil)
}

// merge builds an observation from readings.
func merge(b *backend, s *read.Snapshot, want *servicemodel.Table) (*backends.Observation, error) {
	t, err := s.Merge(want)
	if err != nil {
		return nil, err
	}
	b.kernel.gen = s.Gen
	return b.remember(s, t), nil
}

// dumpSets dumps all sets of a table into raw.
func dumpSets(ctx context.Context, b *backend, raw *read.Reading) error {
	for name := range raw.Specs {
		if form.IsAnonymous(name) || !read.IsRead(name) {
			continue
		}
		err := b.kernel.reader.About(raw.Family, b.pl.Table).Elements(ctx, name,
			func(e nft.Elem) error {
				raw.Add(name, e)
				return nil
			})
		if err != nil {
			return err
		}
	}

	return nil
}

// askAll observes as on a kernel that does not report the numbers of elements of sets.
func askAll(ctx context.Context, b *backend, want *servicemodel.Table) (*backends.Observation,
	error) {
	s, err := b.kernel.reader.Tables(ctx, b.pl.Table, b.crowded)
	if err != nil {
		return nil, err
	}
	for _, r := range s.Tables {
		clear(r.Lengths)
		if r.Stands() {
			if err := b.kernel.reader.Elements(ctx, r, want); err != nil {
				return nil, err
			}
		}
	}

	return merge(b, s, want)
}

// vandal changes elements by hand.
type vandal struct {
	t *testing.T
	b *backend
	r *rand.Rand
}

// strike makes one edit to one of the tables, if the kernel allows it.
func (v *vandal) strike() {
	f := nft.Families[v.r.IntN(2)]
	raw := ok(v.b.kernel.reader.Table(v.t.Context(), f, defaultTable))(v.t)
	if !raw.Exists {
		return
	}
	require.NoError(v.t, dumpSets(v.t.Context(), v.b, raw))
	sh := read.ShapeOf(raw)
	var sets []*nft.Set
	for _, s := range form.SetsOf(f, &sh) {
		if read.IsRead(s.Name) && len(raw.Elems[s.Name]) > 0 {
			sets = append(sets, s)
		}
	}

	if len(sets) == 0 {
		return
	}
	b := &blow{r: v.r, set: sets[v.r.IntN(len(sets))], sets: form.SetsOf(f, &sh)}
	b.elems = raw.Elems[b.set.Name]
	b.keys = slices.Sorted(maps.Keys(b.elems))
	b.elem = b.any()

	// The kernel may refuse the edit, for example because the element exists.
	_ = byHand(v.t, v.b, f, func(e *nft.Encoder) {
		b.enc = e
		b.strike()
	})
}

// blow is one edit of a table.
type blow struct {
	r     *rand.Rand
	enc   *nft.Encoder
	sets  []*nft.Set // all sets of the table
	set   *nft.Set   // the set to edit
	elems map[string]*nft.Elem
	keys  []string
	elem  nft.Elem // the element to edit
}

// any returns any element of the set.
func (b *blow) any() nft.Elem { return *b.elems[b.keys[b.r.IntN(len(b.keys))]] }

func (b *blow) delete(elems ...nft.Elem) {
	for _, e := range elems {
		b.enc.Elements(nft.Delete, b.set, listOf(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd}))
	}
}

func (b *blow) add(to *nft.Set, e nft.Elem) {
	b.enc.Elements(nft.Add, to, listOf(e))
}

func (b *blow) strike() {
	other := b.elem.Clone()
	switch b.r.IntN(7) {
	case 0: // an element is deleted
		b.delete(b.elem)
	case 1: // an element gets a different key
		other.Key[b.r.IntN(len(other.Key))] ^= 1
		b.add(b.set, other)
	case 2: // an element gets different data, or a different comment
		b.delete(b.elem)
		b.change(&other)
		b.add(b.set, other)
	case 3, 4: // an element is copied or moved to another set
		b.move()
	case 5: // a set is flushed
		var all []nft.Elem
		for _, k := range b.keys {
			all = append(all, *b.elems[k])
		}
		b.delete(all...)
	case 6: // a frontend gets the comment of another frontend
		x := b.any()
		if bytes.Equal(x.Key, b.elem.Key) || len(x.UserData) == 0 {
			return
		}
		b.delete(b.elem)
		other.UserData = x.UserData
		b.add(b.set, other)
	}
}

// change changes the end of a range, the data of an element, or else its comment.
func (b *blow) change(e *nft.Elem) {
	if e.KeyEnd != nil {
		e.KeyEnd[len(e.KeyEnd)-1] ^= byte(1 + b.r.IntN(255))
		return
	}

	if e.Data != nil {
		e.Data[b.r.IntN(len(e.Data))] ^= 1
		return
	}

	c := nft.CommentOf(e.UserData)
	if c == "" {
		return
	}
	if name, _, _ := strings.Cut(c, " "); strings.Contains(name, "/") {
		c = name + []string{" cluster IP", " node port verdict=drop", " external IP",
			" loadbalancer IP internal=cluster external=local affinity=60", ""}[b.r.IntN(5)]
	}

	e.UserData = nft.AppendComment(nil, c)
}

// move adds the element to another set of the same type, and may delete it from its own set.
func (b *blow) move() {
	like := slices.DeleteFunc(slices.Clone(b.sets), func(o *nft.Set) bool {
		return o.Name == b.set.Name || !slices.Equal(o.Key, b.set.Key) ||
			!slices.Equal(o.Data, b.set.Data) || !read.IsRead(o.Name)
	})
	if len(like) == 0 {
		return
	}
	if b.r.IntN(2) == 0 {
		b.delete(b.elem)
	}
	b.add(like[b.r.IntN(len(like))], b.elem)
}

// requireSame requires that two observations are equal, and that their backends have the same
// knowledge of the kernel.
func requireSame(t *testing.T, want, got *backends.Observation, wb, gb *backend, how string) {
	t.Helper()
	require.Equal(t, want.Drift, got.Drift, how)
	require.True(t, want.Table.Equal(got.Table), "%s: %s", how,
		servicemodel.Diff(want.Table, got.Table))
	require.False(t, got.Partial, how)
	for i := range wb.pl.Tables {
		w, g := *wb.pl.Tables[i], *gb.pl.Tables[i]
		w.Counts, g.Counts = nil, nil
		require.Equal(t, w, g, how)
	}
}

// After any edits of elements, and for any wanted table, a reading that asks for the wanted
// elements agrees with a dump of everything. The next apply repairs everything.
func TestReadingsAgree(t *testing.T) {
	t.Parallel()
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			r := rand.New(rand.NewPCG(seed, 7))
			open := func() *backend {
				b := newBackend(t, ns, nil)
				b.kernel.reader.Chunk = []int{1, 3, read.Chunk}[r.IntN(3)]
				return b
			}

			g := randstate.New(randomConfig(), r)
			s := g.State()
			for range 3 {
				e := dataplane.New(b, nil)
				for range 4 {
					ok(e.Apply(t.Context(), s))(t)
					s = g.Change(s)
				}

				for range r.IntN(5) {
					(&vandal{t, open(), r}).strike()
				}
				requireAgreement(t, open, g, s)
				ok(dataplane.New(b, nil).Apply(t.Context(), s))(t)
				o := ok(dumpAll(t.Context(), open()))(t)
				require.Empty(t, o.Drift)
				want := ok(servicemodel.Resolve(nil, s))(t)
				want = want.Arrange(o.Table)
				require.Empty(t, servicemodel.Diff(o.Table, want).Frontends)
				require.Empty(t, servicemodel.Diff(o.Table, want).Pools)
			}
		})
	}
}

// requireAgreement compares readings that want s, states close to s, other states, and nothing.
func requireAgreement(t *testing.T, open func() *backend, g *randstate.Source,
	s servicemodel.State) {
	t.Helper()
	plain := open()
	all := ok(dumpAll(t.Context(), plain))(t)
	near := s
	for range 6 {
		near = g.Change(near)
	}
	for how, state := range map[string]*servicemodel.State{"the same": &s, "near": &near,
		"empty": {}, "nothing": nil} {
		var want *servicemodel.Table
		if state != nil {
			want = ok(servicemodel.Resolve(nil, *state))(t)
		}
		b := open()
		got := ok(b.Observe(t.Context(), want))(t)
		requireSame(t, all, got, plain, b, how)

		b = open()
		got = ok(askAll(t.Context(), b, want))(t)
		requireSame(t, all, got, plain, b, how+", without counts")
	}
}

// A map that is too large for a dump may have endpoints that belong to no service. A reading that
// knows the wanted table names such an endpoint only in the slot after the wanted slots. For
// further slots it reports only that there are more elements. A reading without a wanted table
// names each of these endpoints, and the next commit removes them. If the kernel does not report
// the number of elements of the map, the reading cannot tell whether there are more.
func TestMoreThanWasAskedForIsUnread(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := editedState()
	r := ok(e.Apply(t.Context(), s))(t)
	want := r.Changes.New
	observe := func(want *servicemodel.Table) *backends.Observation {
		b := newBackend(t, ns, nil)
		b.kernel.reader.Dumpable = -1
		return ok(b.Observe(t.Context(), want))(t)
	}

	o := observe(want)
	require.Equal(t, !tellsCounts(t, b), o.Partial)
	require.Empty(t, o.Drift)
	require.True(t, servicemodel.Diff(o.Table, want).Empty())

	stray := func(slot int) string { // the service has two slots
		require.NoError(t, addTo(t, b, "service-endpoints", nft.Elem{
			Key:  nft.AppendSlot(nft.AppendFrontend(nil, tcpKey("10.96.0.10:80")), slot),
			Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.9.9:8080"))}))
		return fmt.Sprintf("table ip: service-endpoints: element 10.96.0.10 . tcp . 80 . %d : "+
			"10.244.9.9 . 8080", slot)
	}

	far := stray(3)
	o = observe(want)
	require.True(t, o.Partial)
	require.Empty(t, o.Drift)
	require.True(t, servicemodel.Diff(o.Table, want).Empty())
	o = observe(nil)
	require.False(t, o.Partial)
	require.Equal(t, []string{far}, o.Drift)

	next := stray(2)
	o = observe(want)
	require.True(t, o.Partial)
	if tellsCounts(t, b) {
		require.Equal(t, []string{next}, o.Drift)
	}
	o = observe(nil)
	require.False(t, o.Partial)
	require.Subset(t, o.Drift, []string{next, far})

	// If endpoints are wanted in those slots, the reading finds the other endpoints there.
	four := s.WithEndpoints(goldenService().Name, goldenEndpoints("10.244.1.1", "10.244.1.2",
		"10.244.1.3", "10.244.1.4"))
	more := ok(servicemodel.Resolve(want, four))(t)
	o = observe(more)
	require.Subset(t, o.Drift, []string{next, far})
	fresh := newBackend(t, ns, nil)
	fresh.kernel.reader.Dumpable = -1
	ok(dataplane.New(fresh, nil).Apply(t.Context(), four))(t)
	o = observe(nil)
	require.Empty(t, o.Drift)
	require.Empty(t, servicemodel.Diff(o.Table, more).Pools)
}

// A set is read again if the kernel moved the set during the dump. Such a dump has some elements
// twice, or a wrong number of elements.
func TestDumpsAreCounted(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	ok(dataplane.New(b, nil).Apply(t.Context(), editedState()))(t)
	k := &b.kernel
	raw := ok(k.reader.Table(t.Context(), nft.IPv4, defaultTable))(t)
	n := 0
	dump := func() error {
		n = 0
		return k.reader.DumpSet(t.Context(), raw, "services", func(nft.Elem) { n++ })
	}

	require.NoError(t, dump())
	require.Equal(t, 2, n)
	if tellsCounts(t, b) {
		require.Equal(t, n, raw.Lengths["services"])
	} else {
		require.Empty(t, raw.Lengths)
	}

	raw.Lengths["services"] = n + 1
	require.ErrorIs(t, dump(), read.ErrRehashed)
	delete(raw.Lengths, "services")
	require.NoError(t, dump())
	require.Equal(t, 2, n)
	raw.Lengths["services"] = 0
	require.NoError(t, dump())
	require.Zero(t, n, "an empty set is not dumped")
}

// An element that resembles a frontend is drift if no frontend can have its key, or if it refers to
// a chain for another purpose.
func TestImpossibleFrontendsAreDrift(t *testing.T) {
	t.Parallel()
	some := netip.MustParseAddr("10.96.0.77")
	state := benchState(1, 1, "rr")
	for name, tc := range map[string]struct {
		addr  netip.Addr
		proto byte
		set   string // the set with its other element
		chain string
		lines int
	}{
		"an unknown protocol": {addr: some, proto: 7, set: "service-reject",
			lines: 2},
		"no address": {addr: netip.IPv4Unspecified(), proto: byte(servicemodel.TCP),
			set: "service-reject", lines: 2},
		"another chain": {addr: some, proto: byte(servicemodel.TCP), set: "service-scheduled",
			chain: form.ChainGuard, lines: 3}, // it has no element in service-reject
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			r := ok(dataplane.New(b, nil).Apply(t.Context(), state))(t)
			key := append(nft.AppendAddr(nil, tc.addr), tc.proto, 0, 0, 0, 0, 80, 0, 0)
			require.NoError(t, addTo(t, b, form.KindService.Registry, nft.Elem{Key: key,
				UserData: nft.AppendComment(nil,
					"default/other:http cluster IP verdict=reject masquerade=none")}))
			e := nft.Elem{Key: key}
			if tc.chain != "" {
				e.Data, e.Goto = []byte(tc.chain), true
			}
			require.NoError(t, addTo(t, b, tc.set, e))
			for _, want := range []*servicemodel.Table{r.Changes.New, nil} {
				o := ok(newBackend(t, ns, nil).Observe(t.Context(), want))(t)
				require.Len(t, o.Drift, tc.lines)
				require.True(t, servicemodel.Diff(o.Table, r.Changes.New).Empty())
			}
		})
	}
}

// Two frontends of a service share its endpoints. If the kernel has different endpoints for one of
// them, that frontend is damaged.
func TestFrontendsThatDisagreeAreDrift(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	r := ok(dataplane.New(b, nil).Apply(t.Context(), editedState()))(t)
	for _, padding := range []byte{0, 1} {
		slot := nft.AppendSlot([]byte{203, 0, 113, 10, 6, 0, 0, 0, 0, 80, 0, 0}, 0)
		require.NoError(t, byHand(t, b, nft.IPv4, func(e *nft.Encoder) {
			e.Elements(nft.Delete, &nft.Set{Name: "service-endpoints"}, listOf(nft.Elem{Key: slot}))
		}))
		data := nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.9.9:8080"))
		if padding > 0 { // the right endpoint, except for a byte without meaning
			data = nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.1.1:8080"))
			data[len(data)-1] = padding
		}

		require.NoError(t, addTo(t, b, "service-endpoints", nft.Elem{Key: slot, Data: data}))
		o := ok(newBackend(t, ns, nil).Observe(t.Context(), r.Changes.New))(t)
		require.NotEmpty(t, o.Drift)
		for _, d := range o.Drift {
			require.Contains(t, d, "203.0.113.10")
		}
		require.Nil(t, o.Table.Frontend(tcpKey("203.0.113.10:80")))
		require.Equal(t, r.Changes.New.Len()-1, o.Table.Len())
	}
}
