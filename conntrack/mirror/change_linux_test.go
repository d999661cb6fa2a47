package mirror

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ct "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// fakeEvents is a queue of events and errors.
type fakeEvents struct {
	queue  []any
	closed bool
}

func (f *fakeEvents) Drain(each func(*ct.Event) error) error {
	for len(f.queue) > 0 {
		next := f.queue[0]
		f.queue = f.queue[1:]
		if err, ok := next.(error); ok {
			return err
		}
		e := next.(ct.Event)
		if err := each(&e); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeEvents) Close() error { f.closed = true; return nil }

func TestMirrorEndsIfEventsCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	table, _ := NewTable(t)
	x := mirrorOf(t, table, nil)
	x.times.read = time.Millisecond
	source := &fakeEvents{}
	x.follow = func(o ct.FollowOptions) (follower, error) {
		require.Equal(t, ct.FollowOptions{Types: []ct.EventType{ct.FlowNew, ct.FlowDestroyed},
			Protocols: []ct.Protocol{ct.UDP}, Buffer: defaultBuffer}, o)
		return source, nil
	}
	done := make(chan error, 1)
	go func() { done <- x.Run(context.Background()) }()
	waitSynced(t, x)
	made := ct.Event{Type: ct.FlowNew, Flow: NewFlow(ct.UDP, Client, "10.96.0.10:53", "", "")}
	x.mu.Lock()
	source.queue = append(source.queue, made, ct.Event{Type: ct.EventsLost})
	x.mu.Unlock()
	require.Eventually(t, func() bool {
		return x.Stats().Lists == 2
	}, 10*time.Second, time.Millisecond)
	x.mu.Lock()
	source.queue = append(source.queue, made, broken)
	x.mu.Unlock()
	require.ErrorIs(t, <-done, broken)
	require.True(t, source.closed)
	require.Equal(t, Stats{Lists: 2, Losses: 1}, x.Stats())
}

// Flows come and go while a mirror begins, loses events and has to clean. At any time, it must
// delete the flows that a pass would have deleted.
func TestMirrorAgreesWithTheDefinitionUnderChange(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for _, tc := range []struct {
		name    string
		buffer  int
		restart int // the mirror begins anew once in this many rounds
	}{{"with room for all events", 4 << 20, 4}, {"with losses", 48 << 10, 1000}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			table, _ := NewTable(t)
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 42))
			x := mirrorOf(t, table, &Config{Protocols: []ct.Protocol{ct.TCP, ct.UDP, ct.SCTP},
				Buffer: tc.buffer})
			x.times = times{read: time.Millisecond, check: 5 * time.Millisecond,
				pause: 5 * time.Millisecond}
			stop := func() {}
			lookups, passes := 0, 0
			for round := range rounds {
				if round == 0 || r.IntN(tc.restart) == 0 {
					stop()
					stop = RunMirror(t, table, x)
				}
				churn(t, r, table)
				c := RandomChange(r)
				before := List(t, table, ct.Filter{})
				want := slices.DeleteFunc(slices.Clone(before), func(f ct.Flow) bool {
					return Classify(c, &f).Stale()
				})
				m := OK(ct.NewMatcher(c))(t)
				got := mustClean(t, table, x, m)
				require.Equal(t, Keys(want), Keys(List(t, table, ct.Filter{})), "seed %d: %+v",
					seed, c)
				require.Equal(t, len(before)-len(want), got.Deleted, "seed %d: %+v", seed, c)
				if got.Dumps > 0 {
					passes++
				} else {
					lookups += got.Lookups
				}
			}
			t.Logf("%d of %d with a pass, %d flows looked up otherwise, %+v", passes, rounds,
				lookups, x.Stats())
		})
	}
}

// churn makes and deletes flows, again and again with the same tuples.
func churn(t *testing.T, r *rand.Rand, table *ct.Table) {
	t.Helper()
	for range r.IntN(4) {
		flows := RandomFlows(r, 1+r.IntN(60))
		for i := range flows {
			flows[i].Original.Src = netip.AddrPortFrom(flows[i].Original.Src.Addr(),
				uint16(2000+r.IntN(200)))
			flows[i].Reply.Dst = flows[i].Original.Src
		}
		// as far as they are not there
		OK(table.Create(context.Background(), ct.All(flows...)))(t)
		gone := slices.DeleteFunc(List(t, table, ct.Filter{}), func(ct.Flow) bool {
			return r.IntN(3) > 0
		})
		OK(table.Delete(context.Background(), ct.All(gone...)))(t)
	}
	time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
}
