package nftables

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/randstate"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// dumpAll is the reading that the others are held against: it dumps everything and knows of nothing
// that is wanted.
func dumpAll(ctx context.Context, b *Backend) (*dataplane.Observation, error) {
	var o [2]*observed
	v, err := b.kernel.readVersion(ctx, b.pl.table)
	if err != nil {
		return nil, err
	}
	for i, f := range nft.Families {
		raw, err := b.kernel.readTable(ctx, f, b.pl.table)
		if err != nil {
			return nil, err
		}
		if raw != nil {
			if err := dumpSets(ctx, b, f, raw); err != nil {
				return nil, err
			}
		}
		if o[i], err = read(f, raw, func(*observed) error { return nil }); err != nil {
			return nil, err
		}
	}
	return b.merge(o, v, nil)
}

// dumpSets dumps all sets of a table into raw.
func dumpSets(ctx context.Context, b *Backend, f *nft.Family, raw *rawTable) error {
	for name := range raw.sets {
		if isAnonymous(name) || isAffinityMap(name) || isVersion(name) {
			continue
		}
		err := b.kernel.dumpElements(ctx, f, b.pl.table, name, func(e nft.Elem) error {
			raw.add(name, cloneElem(e))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// askAll observes as on a kernel that does not tell how many elements sets have.
func askAll(ctx context.Context, b *Backend, want *servicemodel.Table) (*dataplane.Observation,
	error) {
	var o [2]*observed
	v, err := b.kernel.readVersion(ctx, b.pl.table)
	if err != nil {
		return nil, err
	}
	for i, f := range nft.Families {
		raw, err := b.kernel.readTable(ctx, f, b.pl.table)
		if err != nil {
			return nil, err
		}
		if raw != nil {
			clear(raw.counts)
		}
		if o[i], err = b.kernel.observeElements(ctx, f, raw, want); err != nil {
			return nil, err
		}
	}
	return b.merge(o, v, want)
}

// vandal changes elements by hand.
type vandal struct {
	t *testing.T
	b *Backend
	r *rand.Rand
}

// strike does one thing to one of the tables, if the kernel lets it.
func (v *vandal) strike() {
	f := nft.Families[v.r.IntN(2)]
	raw, err := v.b.kernel.readTable(v.t.Context(), f, DefaultTable)
	require.NoError(v.t, err)
	if raw == nil {
		return
	}
	require.NoError(v.t, dumpSets(v.t.Context(), v.b, f, raw))
	sh := shapeOf(raw.sets)
	var sets []*nft.Set
	for _, s := range setsOf(f, &sh) {
		if isRead(s.Name) && len(raw.elems[s.Name]) > 0 {
			sets = append(sets, s)
		}
	}
	if len(sets) == 0 {
		return
	}
	b := &blow{r: v.r, set: sets[v.r.IntN(len(sets))], sets: setsOf(f, &sh)}
	b.elems = raw.elems[b.set.Name]
	b.keys = sortedKeys(b.elems)
	b.elem = b.any()
	var batch rawnl.Batch
	b.enc = nft.NewEncoder(&batch, f, DefaultTable)
	b.strike()
	// the kernel may refuse it: it is there already, for example
	_ = v.b.kernel.conn.Commit(v.t.Context(), &batch, 0)
}

// blow is one thing that is done to a table.
type blow struct {
	r     *rand.Rand
	enc   *nft.Encoder
	sets  []*nft.Set // all of the table
	set   *nft.Set   // the one that is struck
	elems map[string]*found
	keys  []string
	elem  nft.Elem // the one that is struck
}

// any returns any element of the set.
func (b *blow) any() nft.Elem { return b.elems[b.keys[b.r.IntN(len(b.keys))]].Elem }

func (b *blow) delete(elems ...nft.Elem) {
	l := &nft.ElemList{}
	for _, e := range elems {
		l.Add(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd})
	}
	b.enc.DeleteElements(b.set, l)
}

func (b *blow) add(to *nft.Set, e nft.Elem) {
	l := &nft.ElemList{}
	l.Add(e)
	b.enc.AddElements(to, l)
}

func (b *blow) strike() {
	other := cloneElem(b.elem)
	switch b.r.IntN(7) {
	case 0: // an element goes
		b.delete(b.elem)
	case 1: // another key
		other.Key[b.r.IntN(len(other.Key))] ^= 1
		b.add(b.set, other)
	case 2: // other data, or another comment
		b.delete(b.elem)
		b.change(&other)
		b.add(b.set, other)
	case 3, 4: // the element is also in, or only in, another set
		b.move()
	case 5: // a set is emptied
		var all []nft.Elem
		for _, k := range b.keys {
			all = append(all, b.elems[k].Elem)
		}
		b.delete(all...)
	case 6: // the comment of one frontend is given to another
		x := b.any()
		if bytes.Equal(x.Key, b.elem.Key) || len(x.UserData) == 0 {
			return
		}
		b.delete(b.elem)
		other.UserData = x.UserData
		b.add(b.set, other)
	}
}

// change changes the data of an element, or else its comment.
func (b *blow) change(e *nft.Elem) {
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

// move adds the element to another set of the same type, and may delete it from its own.
func (b *blow) move() {
	like := slices.DeleteFunc(slices.Clone(b.sets), func(o *nft.Set) bool {
		return o.Name == b.set.Name || !slices.Equal(o.Key, b.set.Key) ||
			!slices.Equal(o.Data, b.set.Data) || !isRead(o.Name)
	})
	if len(like) == 0 {
		return
	}
	if b.r.IntN(2) == 0 {
		b.delete(b.elem)
	}
	b.add(like[b.r.IntN(len(like))], b.elem)
}

// requireSame requires that two observations say the same, and leave their backends with the same
// idea of the kernel.
func requireSame(t *testing.T, want, got *dataplane.Observation, wb, gb *Backend, how string) {
	t.Helper()
	require.Equal(t, want.Drift, got.Drift, how)
	require.True(t, want.Table.Equal(got.Table), "%s: %s", how,
		servicemodel.Diff(want.Table, got.Table))
	require.False(t, got.Unread, how)
	require.Equal(t, wb.pl.drift, gb.pl.drift, how)
	for i := range wb.pl.have {
		w, g := wb.pl.have[i], gb.pl.have[i]
		w.counts, g.counts = nil, nil
		require.Equal(t, w, g, how)
	}
}

// Whatever somebody did to the elements, a reading that asks for what is wanted says what a dump of
// everything says, whatever is wanted; and the next apply puts everything right.
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
			open := func() *Backend {
				b := newBackend(t, ns, nil)
				b.kernel.chunk = []int{1, 3, chunkAddrs}[r.IntN(3)]
				return b
			}
			g := randstate.New(randomConfig(), r)
			s := g.State()
			for range 3 {
				e := dataplane.New(b, nil)
				for range 4 {
					_, err := e.Apply(t.Context(), s)
					require.NoError(t, err)
					s = g.Change(s)
				}
				for range r.IntN(5) {
					(&vandal{t, open(), r}).strike()
				}
				requireAgreement(t, open, g, s)
				_, err := dataplane.New(b, nil).Apply(t.Context(), s)
				require.NoError(t, err)
				o, err := dumpAll(t.Context(), open())
				require.NoError(t, err)
				require.Empty(t, o.Drift)
				want, err := servicemodel.Resolve(nil, s)
				require.NoError(t, err)
				want = want.Arrange(o.Table)
				require.Empty(t, servicemodel.Diff(o.Table, want).Frontends)
				require.Empty(t, servicemodel.Diff(o.Table, want).Pools)
			}
		})
	}
}

// requireAgreement compares readings that want s, states near it, other states, and nothing.
func requireAgreement(t *testing.T, open func() *Backend, g *randstate.Source,
	s servicemodel.State) {
	t.Helper()
	plain := open()
	all, err := dumpAll(t.Context(), plain)
	require.NoError(t, err)
	near := s
	for range 6 {
		near = g.Change(near)
	}
	for how, state := range map[string]*servicemodel.State{"the same": &s, "near": &near,
		"empty": {}, "nothing": nil} {
		var want *servicemodel.Table
		if state != nil {
			want, err = servicemodel.Resolve(nil, *state)
			require.NoError(t, err)
		}
		b := open()
		got, err := b.Observe(t.Context(), want)
		require.NoError(t, err)
		requireSame(t, all, got, plain, b, how)

		b = open()
		got, err = askAll(t.Context(), b, want)
		require.NoError(t, err)
		requireSame(t, all, got, plain, b, how+", without counts")
	}
}

// strayEndpoint is an endpoint in a slot that the service of editedState does not have.
func strayEndpoint() (l nft.ElemList) {
	of := servicemodel.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"),
		Protocol: servicemodel.TCP, Port: 80}
	l.Add(nft.Elem{Key: nft.AppendSlot(nft.AppendFrontend(nil, of), 2),
		Data: nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.9.9:8080"))})
	return l
}

// A map that is too large to be dumped may have endpoints that belong to nothing: a reading that
// knows what is wanted says that there is more, one that does not names it, and the next commit
// puts it right. A kernel that does not tell how many elements the map has leaves it open whether
// there is more.
func TestMoreThanWasAskedForIsUnread(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	s := editedState()
	r, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	want := r.Changes.New
	observe := func(want *servicemodel.Table) *dataplane.Observation {
		b := newBackend(t, ns, nil)
		b.kernel.dumpable = -1
		o, err := b.Observe(t.Context(), want)
		require.NoError(t, err)
		return o
	}
	o := observe(want)
	require.Equal(t, !tellsCounts(t, b), o.Unread)
	require.Empty(t, o.Drift)
	require.True(t, servicemodel.Diff(o.Table, want).Empty())

	l := strayEndpoint()
	var batch rawnl.Batch
	nft.NewEncoder(&batch, nft.IPv4, DefaultTable).AddElements(
		&nft.Set{Name: "service-endpoints"}, &l)
	require.NoError(t, b.kernel.conn.Commit(t.Context(), &batch, 0))

	o = observe(want)
	require.True(t, o.Unread)
	require.Empty(t, o.Drift)
	require.True(t, servicemodel.Diff(o.Table, want).Empty())
	o = observe(nil)
	require.False(t, o.Unread)
	require.Contains(t, o.Drift,
		"table ip: service-endpoints: element 10.96.0.10 . tcp . 80 . 2 : 10.244.9.9 . 8080")

	// What is wanted where the stray is, is found to be in its place.
	third := s.WithEndpoints(goldenService().Name, goldenEndpoints("10.244.1.1", "10.244.1.2",
		"10.244.1.3"))
	more, err := servicemodel.Resolve(want, third)
	require.NoError(t, err)
	o = observe(more)
	require.Contains(t, o.Drift,
		"table ip: service-endpoints: element 10.96.0.10 . tcp . 80 . 2 : 10.244.9.9 . 8080")
	fresh := newBackend(t, ns, nil)
	fresh.kernel.dumpable = -1
	_, err = dataplane.New(fresh, nil).Apply(t.Context(), third)
	require.NoError(t, err)
	o = observe(nil)
	require.Empty(t, o.Drift)
	require.Empty(t, servicemodel.Diff(o.Table, more).Pools)
}

// A set is read again if the kernel was moving it meanwhile: a dump then has other than as many
// elements as the set, or some twice.
func TestDumpsAreCounted(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	_, err := dataplane.New(b, nil).Apply(t.Context(), editedState())
	require.NoError(t, err)
	k := &b.kernel
	raw, err := k.readTable(t.Context(), nft.IPv4, DefaultTable)
	require.NoError(t, err)
	n := 0
	dump := func() error {
		n = 0
		return k.dumpSet(t.Context(), nft.IPv4, raw, "services", func(nft.Elem) { n++ })
	}
	require.NoError(t, dump())
	require.Equal(t, 2, n)
	if tellsCounts(t, b) {
		require.Equal(t, n, raw.counts["services"])
	} else {
		require.Empty(t, raw.counts)
	}
	raw.counts["services"] = n + 1
	require.ErrorIs(t, dump(), errRehashed)
	delete(raw.counts, "services")
	require.NoError(t, dump())
	require.Equal(t, 2, n)
	raw.counts["services"] = 0
	require.NoError(t, dump())
	require.Zero(t, n, "an empty set is not dumped")
}

// Chains are asked for before the node-wide rules are known: all that there may be, of which one
// needs rules.
func TestAllChainsAreAskedFor(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		for _, f := range nft.Families {
			have, most := newProgram(f, tc.rules, &tc.shape), newProgram(f, mostChains, &tc.shape)
			require.Empty(t, goneChains(have, most))
			gone := goneChains(most, have)
			require.Equal(t, tc.rules.MasqueradeNeighbours, len(gone) == 0)
			require.LessOrEqual(t, len(gone), 1)
		}
	}
}

// addTo adds an element to a set of the table of IPv4.
func addTo(t *testing.T, b *Backend, set string, e nft.Elem) {
	t.Helper()
	var l nft.ElemList
	l.Add(e)
	var batch rawnl.Batch
	nft.NewEncoder(&batch, nft.IPv4, DefaultTable).AddElements(&nft.Set{Name: set}, &l)
	require.NoError(t, b.kernel.conn.Commit(t.Context(), &batch, 0))
}

// What looks like a frontend at a key that no frontend can have is none.
func TestImpossibleFrontendsAreDrift(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]servicemodel.FrontendKey{
		"an unknown protocol": {Addr: netip.MustParseAddr("10.96.0.77"), Protocol: 7, Port: 80},
		"no address": {Addr: netip.IPv4Unspecified(), Protocol: servicemodel.TCP,
			Port: 80},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			r, err := dataplane.New(b, nil).Apply(t.Context(), editedState())
			require.NoError(t, err)
			bytes := append(nft.AppendAddr(nil, key.Addr), byte(key.Protocol), 0, 0, 0, 0,
				80, 0, 0)
			comment := nft.AppendComment(nil,
				"default/other:http cluster IP verdict=reject masquerade=none")
			addTo(t, b, kindService.registry, nft.Elem{Key: bytes, UserData: comment})
			addTo(t, b, "service-reject", nft.Elem{Key: bytes})
			o, err := newBackend(t, ns, nil).Observe(t.Context(), r.Changes.New)
			require.NoError(t, err)
			require.Len(t, o.Drift, 2)
			require.True(t, servicemodel.Diff(o.Table, r.Changes.New).Empty())
		})
	}
}

// Two frontends of a service share its endpoints: where the kernel has others for one of them, that
// one is not whole.
func TestFrontendsThatDisagreeAreDrift(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	r, err := dataplane.New(b, nil).Apply(t.Context(), editedState())
	require.NoError(t, err)
	for _, padding := range []byte{0, 1} {
		slot := nft.AppendSlot([]byte{203, 0, 113, 10, 6, 0, 0, 0, 0, 80, 0, 0}, 0)
		var l nft.ElemList
		l.Add(nft.Elem{Key: slot})
		var batch rawnl.Batch
		nft.NewEncoder(&batch, nft.IPv4, DefaultTable).DeleteElements(
			&nft.Set{Name: "service-endpoints"}, &l)
		require.NoError(t, b.kernel.conn.Commit(t.Context(), &batch, 0))
		data := nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.9.9:8080"))
		if padding > 0 { // the right endpoint, but for a byte that means nothing
			data = nft.AppendEndpoint(nil, netip.MustParseAddrPort("10.244.1.1:8080"))
			data[len(data)-1] = padding
		}
		addTo(t, b, "service-endpoints", nft.Elem{Key: slot, Data: data})
		o, err := newBackend(t, ns, nil).Observe(t.Context(), r.Changes.New)
		require.NoError(t, err)
		require.NotEmpty(t, o.Drift)
		for _, d := range o.Drift {
			require.Contains(t, d, "203.0.113.10")
		}
		require.Nil(t,
			o.Table.Frontend(servicemodel.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"),
				Protocol: servicemodel.TCP, Port: 80}))
		require.Equal(t, r.Changes.New.Len()-1, o.Table.Len())
	}
}
