package conntrack

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nfnl"
)

// fakeEvents is a queue of datagrams and errors.
type fakeEvents struct {
	queue  []any
	closed bool
}

func (e *fakeEvents) receive(p []byte) (int, error) {
	if len(e.queue) == 0 {
		return 0, errNoEvent
	}
	next := e.queue[0]
	e.queue = e.queue[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(p, next.([]byte)), nil
}

func (e *fakeEvents) close() error { e.closed = true; return nil }

func TestMirrorEndsIfEventsCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, tc := range []struct {
		name string
		next any
		want error
	}{
		{"an event that does not parse", recordedEvents(t)[0][:50], nfnl.ErrMalformed},
		{"an error of the socket", broken, broken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			table, _ := newTable(t)
			x := mirrorOf(t, table, MirrorOptions{})
			x.times.read = time.Millisecond
			source := &fakeEvents{}
			x.open = func(o eventOptions) (eventSource, error) {
				require.Equal(t, eventOptions{types: []EventType{FlowNew, FlowDestroyed},
					protocols: []Protocol{UDP}, buffer: mirrorBuffer}, o)
				return source, nil
			}
			done := make(chan error, 1)
			go func() { done <- x.Run(context.Background()) }()
			waitSynced(t, x)
			x.mu.Lock()
			source.queue = append(source.queue, recordedEvents(t)[0], errEventsLost)
			x.mu.Unlock()
			require.Eventually(t, func() bool {
				return x.Stats().Lists == 2
			}, 10*time.Second, time.Millisecond)
			x.mu.Lock()
			source.queue = append(source.queue, recordedEvents(t)[0], tc.next, errNoEvent)
			x.mu.Unlock()
			require.ErrorIs(t, <-done, tc.want)
			require.True(t, source.closed)
			require.Equal(t, MirrorStats{Lists: 2, Losses: 1}, x.Stats())
		})
	}
}

// Flows come and go while a mirror begins, loses events and is asked to clean. At any time, it
// deletes what a pass would have.
func TestMirrorAgreesWithTheDefinitionUnderChange(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for _, tc := range []struct {
		name    string
		buffer  int
		restart int // the mirror begins anew once in so many rounds
	}{{"with room for all events", 4 << 20, 4}, {"with losses", 48 << 10, 1000}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			table, _ := newTable(t)
			seed := rand.Uint64()
			r := rand.New(rand.NewPCG(seed, 42))
			x := mirrorOf(t, table, MirrorOptions{Protocols: []Protocol{TCP, UDP, SCTP},
				Buffer: tc.buffer})
			x.times = mirrorTimes{read: time.Millisecond, check: 5 * time.Millisecond,
				pause: 5 * time.Millisecond}
			stop := func() {}
			lookups, passes := 0, 0
			for round := range rounds {
				if round == 0 || r.IntN(tc.restart) == 0 {
					stop()
					stop = runMirror(t, x)
				}
				churn(t, r, table)
				c := randomChange(r)
				before := list(t, table, Filter{})
				want := slices.DeleteFunc(slices.Clone(before), func(f Flow) bool {
					return classifySlowly(c, &f).Stale()
				})
				m, err := NewMatcher(c)
				require.NoError(t, err)
				got := mustClean(t, x, m)
				require.Equal(t, keys(want), keys(list(t, table, Filter{})), "seed %d: %+v",
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
func churn(t *testing.T, r *rand.Rand, table *Table) {
	t.Helper()
	for range r.IntN(4) {
		flows := randomTable(r, 1+r.IntN(60))
		for i := range flows {
			flows[i].Original.Src = netip.AddrPortFrom(flows[i].Original.Src.Addr(),
				uint16(2000+r.IntN(200)))
			flows[i].Reply.Dst = flows[i].Original.Src
		}
		_, err := table.Create(context.Background(), All(flows...)) // as far as they are not there
		require.NoError(t, err)
		gone := Where(table.Flows(context.Background(), Filter{}), func(*Flow) bool {
			return r.IntN(3) == 0
		})
		_, err = table.Delete(context.Background(), gone)
		require.NoError(t, err)
	}
	time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
}
