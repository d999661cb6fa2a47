package mirror

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	ct "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// knows returns all flows that an index notes, through the methods that Clean uses.
func (x *index) knows() []ct.Flow {
	var all []ct.Flow
	for i := uint32(1); i <= max(x.v4.flows.used, x.v6.flows.used); i++ {
		if i <= x.v4.flows.used {
			if f, ok := x.v4.flow(i); ok {
				all = append(all, f)
			}
		}
		if i <= x.v6.flows.used {
			if f, ok := x.v6.flow(i); ok {
				all = append(all, f)
			}
		}
	}
	return all
}

func TestIndexFollowsEvents(t *testing.T) {
	t.Parallel()
	x := newIndex()
	udp := NewFlow(ct.UDP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	over6 := NewFlow(ct.UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "", "")
	over6.Original.Zone, over6.Reply.Zone = 9, 9
	sctp := NewFlow(ct.SCTP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	sctp.Original.Zone = 9
	udp.ID, over6.ID, sctp.ID = 1, 2, 3
	for _, step := range []struct {
		event ct.Event
		want  []ct.Flow
	}{
		{ct.Event{Type: ct.FlowNew, Flow: udp}, []ct.Flow{udp}},
		{ct.Event{Type: ct.FlowNew, Flow: over6}, []ct.Flow{udp, over6}},
		{ct.Event{Type: ct.FlowNew, Flow: sctp}, []ct.Flow{udp, over6, sctp}},
		{ct.Event{Type: ct.FlowDestroyed, Flow: sctp}, []ct.Flow{udp, over6}},
		{ct.Event{Type: ct.FlowDestroyed, Flow: udp}, []ct.Flow{over6}},
		{ct.Event{Type: ct.FlowDestroyed, Flow: over6}, []ct.Flow{}},
	} {
		x.apply(&step.event)
		require.ElementsMatch(t, step.want, x.knows())
	}
	require.EqualValues(t, 6, x.events)
	require.Zero(t, x.v4.paths.n+x.v6.paths.n)

	// Adding a flow twice equals adding it once. The end of another flow with the same tuple ends
	// nothing.
	for range 2 {
		x.apply(&ct.Event{Type: ct.FlowNew, Flow: udp})
	}
	other := udp
	other.ID++
	x.apply(&ct.Event{Type: ct.FlowDestroyed, Flow: other})
	require.Equal(t, 1, x.len())
}

// An index agrees with a plain list about each flow, and finds each stale one.
func TestIndexAgreesWithAList(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 50))
	x := newIndex()
	var model []ct.Flow
	for range 3000 {
		if len(model) > 0 && r.IntN(20) < 9 {
			i := r.IntN(len(model))
			x.remove(&model[i])
			model = slices.Delete(model, i, i+1)
		} else {
			f := flowToNote(r)
			if !slices.ContainsFunc(model, func(o ct.Flow) bool {
				return o.ID == f.ID && sameNote(&o, &f)
			}) {
				model = append(model, f)
			}
			x.add(&f)
		}
		require.Equal(t, len(model), x.len(), "seed %d", seed)
		if r.IntN(50) == 0 {
			requireSuspects(t, r, model, x, seed)
		}
	}
	for i := range model {
		x.remove(&model[i])
	}
	require.Zero(t, x.len()+x.v4.paths.n+x.v6.paths.n, "seed %d", seed)
	require.Empty(t, x.knows())
}

// flowToNote returns a flow whose ID other flows have, too.
func flowToNote(r *rand.Rand) ct.Flow {
	f := RandomFlow(r)
	f.Reply.Dst = f.Original.Src
	f.ID = uint32(r.IntN(100))
	switch r.IntN(4) {
	case 0:
		f.Original.Zone = 0
	case 1:
		f.Reply.Zone = 0
	}
	return f
}

// requireSuspects makes a change, and compares the stale flows of the model with the suspects.
func requireSuspects(t *testing.T, r *rand.Rand, model []ct.Flow, x *index, seed uint64) {
	t.Helper()
	c := RandomChange(r)
	for i := range c.Frontends {
		c.Frontends[i].Backwards = r.IntN(2) == 0
	}
	m := OK(ct.NewMatcher(c))(t)
	covers := func(p ct.Protocol) bool { return p != ct.SCTP }
	var want, got []string
	for _, f := range model {
		if covers(f.Protocol) && m.Stale(&f) {
			want = append(want, note(&f))
		}
	}
	for _, s := range x.suspects(m, covers) {
		f, ok := x.flow(s)
		require.True(t, ok)
		got = append(got, note(&f))
	}
	require.ElementsMatch(t, want, got, "seed %d: %+v", seed, c)
}

// sameNote reports whether two flows with the same ID are one to an index.
func sameNote(a, b *ct.Flow) bool {
	return a.Protocol == b.Protocol && a.Original.Src == b.Original.Src &&
		a.Original.Dst == b.Original.Dst && a.Reply.Src == b.Reply.Src &&
		a.Original.Zone == b.Original.Zone && a.Reply.Zone == b.Reply.Zone
}

func note(f *ct.Flow) string {
	g := ct.Flow{Protocol: f.Protocol, Original: f.Original, Reply: f.Reply}
	g.Reply.Dst = g.Original.Src
	g.Mark = f.ID
	return g.String()
}

// While the table is listed, flows come and go. Events come in order, but late. The list comes in
// parts that the kernel made some time before. In the end, the index has every existing flow.
func TestIndexMissesNothingWhileTheTableIsListed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 51))
	for range 200 {
		k := listedTable{r: r}
		for range 100 { // before anybody listened
			k.change()
		}
		k.queue = nil
		x := newIndex()
		for !k.listed() {
			switch r.IntN(4) {
			case 0:
				k.change()
			case 1:
				k.list()
			case 2:
				k.takePart(x)
			case 3:
				k.takeEvent(x)
			}
		}
		for len(k.queue) > 0 {
			k.takeEvent(x)
		}
		for _, bucket := range k.buckets {
			for i := range bucket {
				require.True(t, x.has(&bucket[i]), "seed %d: %s", seed, bucket[i])
			}
		}
	}
}

// listedTable is a table in the course of a list.
type listedTable struct {
	r       *rand.Rand
	buckets [20][]ct.Flow
	queue   []ct.Event
	parts   [][]ct.Flow // of the list, that are not read yet
	next    int         // bucket to be listed
	id      uint32
}

// change makes a flow or ends one.
func (k *listedTable) change() {
	bucket := &k.buckets[k.r.IntN(len(k.buckets))]
	if n := len(*bucket); n > 0 && k.r.IntN(2) == 0 {
		i := k.r.IntN(n)
		k.queue = append(k.queue, ct.Event{Type: ct.FlowDestroyed, Flow: (*bucket)[i]})
		*bucket = slices.Delete(*bucket, i, i+1)
		return
	}
	f := RandomFlow(k.r)
	k.id++
	f.ID = k.id
	*bucket = append(*bucket, f)
	k.queue = append(k.queue, ct.Event{Type: ct.FlowNew, Flow: f})
}

// list makes the next part of the list.
func (k *listedTable) list() {
	if k.next < len(k.buckets) {
		k.parts = append(k.parts, slices.Clone(k.buckets[k.next]))
		k.next++
	}
}

func (k *listedTable) listed() bool { return k.next == len(k.buckets) && len(k.parts) == 0 }

func (k *listedTable) takePart(x *index) {
	if len(k.parts) > 0 {
		for i := range k.parts[0] {
			x.add(&k.parts[0][i])
		}
		k.parts = k.parts[1:]
	}
}

func (k *listedTable) takeEvent(x *index) {
	if len(k.queue) > 0 {
		x.apply(&k.queue[0])
		k.queue = k.queue[1:]
	}
}

// Each byte makes a flow, or ends one.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x81, 0x82, 0x83})
	f.Fuzz(func(t *testing.T, data []byte) {
		x := newIndex()
		for _, b := range data {
			e := ct.Event{Flow: RandomFlow(rand.New(rand.NewPCG(uint64(b&0x7f), 0)))}
			if e.Flow.ID = uint32(b & 7); b&0x80 != 0 {
				e.Type = ct.FlowDestroyed
			}
			x.apply(&e)
		}
		all := x.knows()
		require.Len(t, all, x.len())
		for i := range all {
			require.True(t, x.has(&all[i]))
			x.remove(&all[i])
		}
		require.Zero(t, x.len()+x.v4.paths.n+x.v6.paths.n)
	})
}
