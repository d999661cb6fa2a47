package mirror

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/conntrack/internal/cttest"
)

// knows returns all that an index notes, through what Clean uses.
func (x *index) knows() []conntrack.Flow {
	var all []conntrack.Flow
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
	udp := NewFlow(conntrack.UDP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	over6 := NewFlow(conntrack.UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "", "")
	over6.Original.Zone, over6.Reply.Zone = 9, 9
	sctp := NewFlow(conntrack.SCTP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	sctp.Original.Zone = 9
	udp.ID, over6.ID, sctp.ID = 1, 2, 3
	for _, step := range []struct {
		event conntrack.Event
		want  []conntrack.Flow
	}{
		{conntrack.Event{Type: conntrack.FlowNew, Flow: udp}, []conntrack.Flow{udp}},
		{conntrack.Event{Type: conntrack.FlowNew, Flow: over6}, []conntrack.Flow{udp, over6}},
		{conntrack.Event{Type: conntrack.FlowNew, Flow: sctp}, []conntrack.Flow{udp, over6, sctp}},
		{conntrack.Event{Type: conntrack.FlowDestroyed, Flow: sctp}, []conntrack.Flow{udp, over6}},
		{conntrack.Event{Type: conntrack.FlowDestroyed, Flow: udp}, []conntrack.Flow{over6}},
		{conntrack.Event{Type: conntrack.FlowDestroyed, Flow: over6}, []conntrack.Flow{}},
	} {
		x.apply(&step.event)
		require.ElementsMatch(t, step.want, x.knows())
	}
	require.EqualValues(t, 6, x.events)
	require.Zero(t, x.v4.paths.n+x.v6.paths.n)

	// Twice is once; the end of another flow with the same tuple ends nothing.
	for range 2 {
		x.apply(&conntrack.Event{Type: conntrack.FlowNew, Flow: udp})
	}
	other := udp
	other.ID++
	x.apply(&conntrack.Event{Type: conntrack.FlowDestroyed, Flow: other})
	require.Equal(t, 1, x.len())
}

// An index says of each flow what a plain list says, and brings each that is stale.
func TestIndexAgreesWithAList(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 50))
	x := newIndex()
	var model []conntrack.Flow
	for range 3000 {
		switch {
		case len(model) > 0 && r.IntN(20) < 9:
			i := r.IntN(len(model))
			x.remove(&model[i])
			model = slices.Delete(model, i, i+1)
		default:
			f := RandomFlow(r)
			f.Reply.Dst = f.Original.Src
			f.ID = uint32(r.IntN(100)) // IDs collide
			switch r.IntN(4) {
			case 0:
				f.Original.Zone = 0
			case 1:
				f.Reply.Zone = 0
			}
			if !slices.ContainsFunc(model, func(o conntrack.Flow) bool {
				return o.ID == f.ID && sameNote(&o, &f)
			}) {
				model = append(model, f)
			}
			x.add(&f)
		}
		require.Equal(t, len(model), x.len(), "seed %d", seed)
		if r.IntN(50) > 0 {
			continue
		}
		c := RandomChange(r)
		for i := range c.Frontends {
			c.Frontends[i].Backwards = r.IntN(2) == 0
		}
		m, err := conntrack.NewMatcher(c)
		require.NoError(t, err)
		covers := func(p conntrack.Protocol) bool { return p != conntrack.SCTP }
		var want, got []string
		for _, f := range model {
			if covers(f.Protocol) && m.Classify(&f).Stale() {
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
	for i := range model {
		x.remove(&model[i])
	}
	require.Zero(t, x.len()+x.v4.paths.n+x.v6.paths.n, "seed %d", seed)
	require.Empty(t, x.knows())
}

// sameNote reports whether two flows with the same ID are one to an index.
func sameNote(a, b *conntrack.Flow) bool {
	return a.Protocol == b.Protocol && a.Original.Src == b.Original.Src &&
		a.Original.Dst == b.Original.Dst && a.Reply.Src == b.Reply.Src &&
		a.Original.Zone == b.Original.Zone && a.Reply.Zone == b.Reply.Zone
}

func note(f *conntrack.Flow) string {
	g := conntrack.Flow{Protocol: f.Protocol, Original: f.Original, Reply: f.Reply}
	g.Reply.Dst = g.Original.Src
	g.Mark = f.ID
	return g.String()
}

// While the table is listed, flows come and go. Events come in their order, but late, the list
// comes in parts that the kernel made some time before. In the end, no flow that is there is
// missing.
func TestIndexMissesNothingWhileTheTableIsListed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 51))
	for range 200 {
		const buckets = 20
		type event struct {
			made bool
			flow conntrack.Flow
		}
		var table [buckets][]conntrack.Flow
		var queue []event
		var parts [][]conntrack.Flow
		id := uint32(0)
		happen := func(silent bool) {
			b := r.IntN(buckets)
			if n := len(table[b]); n > 0 && r.IntN(2) == 0 {
				i := r.IntN(n)
				if !silent {
					queue = append(queue, event{false, table[b][i]})
				}
				table[b] = slices.Delete(table[b], i, i+1)
				return
			}
			f := RandomFlow(r)
			id++
			f.ID = id
			table[b] = append(table[b], f)
			if !silent {
				queue = append(queue, event{true, f})
			}
		}
		for range 100 { // before anybody listened
			happen(true)
		}
		x := newIndex()
		for next := 0; next < buckets || len(parts) > 0; {
			switch r.IntN(4) {
			case 0:
				happen(false)
			case 1:
				if next < buckets {
					parts = append(parts, slices.Clone(table[next]))
					next++
				}
			case 2:
				if len(parts) > 0 {
					for i := range parts[0] {
						x.add(&parts[0][i])
					}
					parts = parts[1:]
				}
			case 3:
				if len(queue) > 0 {
					if e := queue[0]; e.made {
						x.add(&e.flow)
					} else {
						x.remove(&e.flow)
					}
					queue = queue[1:]
				}
			}
		}
		for _, e := range queue {
			if e.made {
				x.add(&e.flow)
			} else {
				x.remove(&e.flow)
			}
		}
		for _, bucket := range table {
			for i := range bucket {
				require.True(t, x.has(&bucket[i]), "seed %d: %s", seed, bucket[i])
			}
		}
	}
}

// Each byte makes a flow, or ends one.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0x81, 0x82, 0x83})
	f.Fuzz(func(t *testing.T, data []byte) {
		x := newIndex()
		for _, b := range data {
			e := conntrack.Event{Flow: RandomFlow(rand.New(rand.NewPCG(uint64(b&0x7f), 0)))}
			if e.Flow.ID = uint32(b & 7); b&0x80 != 0 {
				e.Type = conntrack.FlowDestroyed
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
