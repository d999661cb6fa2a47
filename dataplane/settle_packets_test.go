package dataplane_test

import (
	"context"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/stretchr/testify/require"
)

// sweeper is a backend in memory that has to sweep after each commit, once no packet is under way
// that began before it.
type sweeper struct {
	*memory.Backend
	commits []time.Time // not swept yet
	swept   int
	sweeps  int
}

func (s *sweeper) Commit(ctx context.Context, c *servicemodel.ChangeSet) (dataplane.Stats, error) {
	st, err := s.Backend.Commit(ctx, c)
	s.commits = append(s.commits, time.Now())
	return st, err
}

func (s *sweeper) Settle(ctx context.Context) (time.Duration, error) {
	p := wait.PacketsOf(ctx)
	for len(s.commits) > 0 {
		if !p.Over(s.commits[0]) {
			return wait.Grace, nil
		}
		done := time.Now()
		if p != nil {
			done = p.Done
		}
		s.sweeps++
		for len(s.commits) > 0 && !s.commits[0].After(done) {
			s.commits = s.commits[1:]
			s.swept++
		}
	}
	return 0, nil
}

// sweeping is a Run on a sweeper, whose waits for packets take a second.
type sweeping struct {
	*runner
	b     *sweeper
	waits int
}

func newSweeping(t *testing.T) *sweeping {
	b := &sweeper{Backend: memory.New(nil)}
	e := dataplane.New(b, nil)
	s := &sweeping{b: b}
	e.AwaitPacketsBy(func(ctx context.Context) error {
		s.waits++
		return wait.For(ctx, time.Second)
	})
	s.runner = runOn(t, &bench{b.Backend, e}, dataplane.RunOptions{Resync: never})
	return s
}

func TestTheNextCommitDoesNotWaitForPackets(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSweeping(t)
		for i := range 5 {
			s.at(time.Duration(i) * 100 * time.Millisecond)
			s.set(services(i + 1))
		}
		s.at(900 * time.Millisecond)
		require.Equal(t, []time.Duration{0, 1e8, 2e8, 3e8, 4e8}, s.applies, "none has waited")
		require.Equal(t, 1, s.waits)
		require.Zero(t, s.b.swept)
		st := s.engine.Status()
		require.False(t, st.Pending())
		require.False(t, st.Settle.IsZero(), "there is work left")
		require.NotZero(t, s.results[4].Settle)

		s.at(1100 * time.Millisecond)
		require.Equal(t, 1, s.b.swept, "the wait began after the first commit")
		require.False(t, s.engine.Status().Settle.IsZero())
		s.at(3 * time.Second)
		require.Equal(t, 5, s.b.swept)
		require.Equal(t, 2, s.waits, "one wait serves all commits before it")
		require.Equal(t, 2, s.b.sweeps)
		require.True(t, s.engine.Status().Settle.IsZero())
		s.at(time.Hour)
		require.Equal(t, 2, s.waits)
	})
}

// Commits without pause do not keep a sweep waiting.
func TestSweepsKeepUpWithCommits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSweeping(t)
		for i := range 200 {
			s.at(time.Duration(i) * 100 * time.Millisecond)
			s.set(services(i%5 + 1))
			require.Less(t, len(s.b.commits), 21, "of two seconds")
		}
		s.at(19900 * time.Millisecond)
		require.Len(t, s.applies, 200)
		require.Equal(t, 20, s.waits)
	})
}

func TestApplyReturnsWhenNothingIsLeftToSweep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSweeping(t)
		s.set(services(1))
		s.at(100 * time.Millisecond)
		r := ok(s.engine.Apply(t.Context(), services(2)))(t)
		require.Zero(t, r.Settle)
		require.Equal(t, 2, s.b.swept, "that of Run's commit, too")
		s.at(time.Minute)
		require.Equal(t, 1, s.waits)
		require.Equal(t, 1, s.b.sweeps)

		s.set(services(3))
		s.at(61 * time.Second)
		s.set(services(4))
		require.NoError(t, s.engine.Finish(t.Context()))
		require.Equal(t, 4, s.b.swept)
	})
}

// Whatever happens during a wait for packets, the work afterwards finds what is there then.
func TestWhatHappensDuringAWaitForPackets(t *testing.T) {
	for name, during := range map[string]func(t *testing.T, s *sweeping){
		"cleanup": func(t *testing.T, s *sweeping) { ok(s.engine.Cleanup(t.Context()))(t) },
		"switch": func(t *testing.T, s *sweeping) {
			ok(s.engine.Switch(t.Context(), memory.New(nil), nil))(t)
		},
		"resync": func(_ *testing.T, s *sweeping) { s.engine.Resync() },
		"flush":  func(_ *testing.T, s *sweeping) { s.Kernel().Flush() },
		"the end of Run": func(t *testing.T, s *sweeping) {
			begun := time.Now()
			s.stop()
			require.Equal(t, begun, time.Now(), "the context ends the wait")
		},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newSweeping(t)
			s.set(services(2))
			s.at(500 * time.Millisecond)
			require.Equal(t, 1, s.waits)
			during(t, s)
			s.at(time.Minute)
			require.Zero(t, s.engine.Status().Totals.Failures)
			for _, err := range s.errs {
				require.NoError(t, err)
			}
			if s.engine.Status().Running {
				require.True(t, s.engine.Status().Settle.IsZero())
			}
		})
	}
}
