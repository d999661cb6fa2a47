package conntrack

import (
	"bufio"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// recordedEvents returns the events of testdata/events.txt.
func recordedEvents(tb testing.TB) (all [][]byte) {
	file, err := os.Open("testdata/events.txt")
	require.NoError(tb, err)
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if data, err := hex.DecodeString(s.Text()); err == nil && len(data) > 0 {
			all = append(all, data)
		}
	}
	return all
}

// knows returns all that an index notes, through what Clean uses.
func (x *flowIndex) knows() []Flow {
	var all []Flow
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

func TestIndexFollowsRecordedEvents(t *testing.T) {
	t.Parallel()
	x := newFlowIndex()
	udp := flow(UDP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	over6 := flow(UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "", "")
	over6.Original.Zone, over6.Reply.Zone = 9, 9
	sctp := flow(SCTP, "10.0.0.1:4000", "10.96.0.10:53", "10.244.0.5:5353", "")
	sctp.Original.Zone = 9
	events := recordedEvents(t)
	for i, want := range [][]Flow{{udp}, {udp, over6}, {udp, over6, sctp}, {udp, over6},
		{over6}, {}} {
		require.NoError(t, x.apply(events[i], wantAll))
		got := x.knows()
		require.Equal(t, keys(want), keys(got), "after %d events", i+1)
		for _, f := range got {
			require.NotZero(t, f.ID)
		}
	}
	require.EqualValues(t, 6, x.events)
	require.Zero(t, x.v4.paths.n+x.v6.paths.n)

	// Twice is once; the end of another flow with the same tuple ends nothing.
	for range 2 {
		require.NoError(t, x.apply(events[0], wantAll))
	}
	other := x.knows()[0]
	other.ID++
	x.remove(&other)
	require.Equal(t, 1, x.len())
	require.NoError(t, x.apply(events[1], func(f *Flow) bool { return f.Protocol == TCP }))
	require.Equal(t, 1, x.len(), "of a protocol that is not wanted")
	require.ErrorIs(t, x.apply(events[0][:50], wantAll), nfnl.ErrMalformed)
}

// An index says of each flow what a plain list says, and brings each that is stale.
func TestIndexAgreesWithAList(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 50))
	x := newFlowIndex()
	var model []Flow
	for range 3000 {
		switch {
		case len(model) > 0 && r.IntN(20) < 9:
			i := r.IntN(len(model))
			x.remove(&model[i])
			model = slices.Delete(model, i, i+1)
		default:
			f := randomFlow(r)
			f.Reply.Dst = f.Original.Src
			f.ID = uint32(r.IntN(100)) // IDs collide
			switch r.IntN(4) {
			case 0:
				f.Original.Zone = 0
			case 1:
				f.Reply.Zone = 0
			}
			if !slices.ContainsFunc(model, func(o Flow) bool {
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
		c := randomChange(r)
		for i := range c.Frontends {
			c.Frontends[i].Backwards = r.IntN(2) == 0
		}
		m, err := NewMatcher(c)
		require.NoError(t, err)
		covers := func(p Protocol) bool { return p != SCTP }
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
func sameNote(a, b *Flow) bool {
	return a.Protocol == b.Protocol && a.Original.Src == b.Original.Src &&
		a.Original.Dst == b.Original.Dst && a.Reply.Src == b.Reply.Src &&
		a.Original.Zone == b.Original.Zone && a.Reply.Zone == b.Reply.Zone
}

func note(f *Flow) string {
	g := Flow{Protocol: f.Protocol, Original: f.Original, Reply: f.Reply}
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
			flow Flow
		}
		var table [buckets][]Flow
		var queue []event
		var parts [][]Flow
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
			f := randomFlow(r)
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
		x := newFlowIndex()
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

func FuzzIndexApply(f *testing.F) {
	for _, data := range recordedEvents(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x := newFlowIndex()
		for range 2 {
			if x.apply(data, wantAll) != nil {
				return
			}
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

// The filter is a program of classic BPF for the kernel; what it does there is tested with real
// events.
func TestEventFilter(t *testing.T) {
	t.Parallel()
	require.Equal(t, []bpfInstruction{
		// A = behind the headers
		{0x00, 0, 0, 20},
		// CTA_TUPLE_ORIG, or accept
		{0x01, 0, 0, 1}, {0x20, 0, 0, 0xfffff00c}, {0x15, 0, 1, 0}, {0x06, 0, 0, 0xffffffff},
		// CTA_TUPLE_PROTO in it, or accept
		{0x01, 0, 0, 2}, {0x20, 0, 0, 0xfffff010}, {0x15, 0, 1, 0}, {0x06, 0, 0, 0xffffffff},
		// CTA_PROTO_NUM in it, or accept
		{0x01, 0, 0, 1}, {0x20, 0, 0, 0xfffff010}, {0x15, 0, 1, 0}, {0x06, 0, 0, 0xffffffff},
		{0x07, 0, 0, 0}, {0x50, 0, 0, 4}, // A = its value
		{0x15, 0, 1, 17}, {0x06, 0, 0, 0xffffffff},
		{0x15, 0, 1, 132}, {0x06, 0, 0, 0xffffffff},
		{0x06, 0, 0, 0},
	}, eventFilter([]Protocol{UDP, SCTP}))
}
