package dataplane_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// sweeper is a backend in memory that must sweep after each commit, once no packet from before the
// commit is in flight.
type sweeper struct {
	*memory.Backend
	commits []time.Time // not swept yet
	swept   int
	sweeps  int
}

func (s *sweeper) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
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

// Whatever happens during a wait for packets, the work after the wait uses the contents at that
// time.
func TestWhatHappensDuringAWaitForPackets(t *testing.T) {
	for name, during := range map[string]func(t *testing.T, s *sweeping){
		"cleanup": func(t *testing.T, s *sweeping) { ok(s.engine.Cleanup(t.Context()))(t) },
		"switch": func(t *testing.T, s *sweeping) {
			ok(s.engine.Switch(t.Context(), memory.New(nil)))(t)
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

// growing is service 1 with a slow start, and endpoints.
func growing(takes time.Duration, hosts ...byte) servicemodel.State {
	svc := service(1)
	svc.SlowStart = takes
	return services(2).WithService(svc).WithEndpoints(svc.Name, endpoints(hosts...))
}

// part returns the fraction of its full weight that an endpoint of service 1 has in the kernel.
func part(t *testing.T, k *memory.Kernel, host byte) float64 {
	t.Helper()
	for p := range k.Table().Pools() {
		if p.ID.Service.Name != serviceName(1) {
			continue
		}
		for _, s := range p.Slots {
			if s.Endpoint.Addr().As4()[3] == host {
				return float64(s.Weight) / 20
			}
		}
	}

	t.Fatalf("endpoint %d is not there", host)
	return 0
}

// requireLine requires the fraction of the full weight that a linear slow start gives after a time.
func requireLine(t *testing.T, k *memory.Kernel, host byte, after, takes time.Duration) {
	t.Helper()
	line := min(1, .1+.9*float64(after)/float64(takes))
	require.InDelta(t, line, part(t, k, host), .05, "%v of %v", after, takes)
}

func TestRunLetsEndpointsGrow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const takes = 10 * time.Second
		r := run(t, dataplane.RunOptions{})
		r.set(growing(takes, 1, 2))
		synctest.Wait()
		require.Zero(t, r.status().Settle, "a new service has whole weights")
		before := r.Calls(memory.CallCommit)
		rev := r.engine.Set(growing(takes, 1, 2, 3))
		begun := time.Now()
		for after := time.Duration(0); after < takes; after = time.Since(begun) {
			synctest.Wait()
			requireLine(t, r.Kernel(), 3, after, takes)
			require.False(t, r.status().Settle.IsZero())
			require.InDelta(t, 1, part(t, r.Kernel(), 1), 0)
			switch {
			case after == 3*time.Second: // other endpoints change
				rev = r.engine.Set(growing(takes, 1, 2, 3).WithService(service(9)))
			case after == 5*time.Second: // a repair continues from the present weights
				r.Kernel().Flush()
				time.Sleep(300 * time.Millisecond)
			}

			time.Sleep(100 * time.Millisecond)
		}

		synctest.Wait()
		st := r.status()
		require.InDelta(t, 1, part(t, r.Kernel(), 3), 0)
		require.Zero(t, st.Settle, "nothing is left")
		require.Equal(t, rev, st.Applied)
		require.Equal(t, 1, st.Totals.Repairs)
		require.InDelta(t, 18+3, r.Calls(memory.CallCommit)-before, 1)
		steps := 0
		for _, res := range r.results {
			if res.Step {
				steps++
				require.Equal(t, rev >= res.Revision, true)
				require.LessOrEqual(t, res.Counts.Changed, 1)
			}
		}

		require.GreaterOrEqual(t, steps, 15)
		r.stop()
	})
}

// A program that applies once takes the first step, and Finish the further steps. A program that
// starts in the middle continues from the kernel's weights.
func TestProgramsLetEndpointsGrowInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const takes = 20 * time.Second
		b := newBench(nil)
		s := growing(takes, 1, 2, 3)
		b.apply(t, growing(takes, 1, 2))
		r := ok(b.engine.Apply(t.Context(), s))(t)
		require.InDelta(t, .1, part(t, b.Kernel(), 3), 0)
		require.Positive(t, r.Settle)
		for begun := time.Now(); time.Since(begun) < takes/2; {
			time.Sleep(ok(b.engine.Settle(t.Context()))(t))
		}
		require.InDelta(t, .55, part(t, b.Kernel(), 3), .05)
		held := part(t, b.Kernel(), 3)

		time.Sleep(time.Hour) // no program runs
		next := newBench(b.Kernel())
		ok(next.engine.Apply(t.Context(), s))(t)
		require.InDelta(t, held, part(t, next.Kernel(), 3), 0)
		begun := time.Now()
		require.NoError(t, next.engine.Finish(t.Context()))
		requireHolds(t, next.Kernel(), s)
		require.InDelta(t, float64(takes)*(1-held)/.9, float64(time.Since(begun)),
			float64(takes)/20)
	})
}

// A plan ends at the final state, even while endpoints are in slow start. So after a stored change
// set is applied, every endpoint has its full weight.
func TestAPlanHasWholeWeights(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, start := growing(20*time.Second, 1, 2), newBench(nil)
		start.apply(t, growing(20*time.Second, 1))
		for _, grows := range []bool{false, true} {
			if grows {
				ok(start.engine.Apply(t.Context(), s))(t)
				require.InDelta(t, .1, part(t, start.Kernel(), 2), 0)
			}

			for _, planner := range []*bench{start, newBench(start.Kernel())} {
				p := ok(planner.engine.Plan(t.Context(), s))(t)
				require.Contains(t, p.Changes.String(), "10.244.0.2:8080 weight 20")
			}
		}

		c := planned(t, newBench(start.Kernel()), s)
		r := ok(newBench(start.Kernel()).engine.ApplyChanges(t.Context(), c))(t)
		require.Zero(t, r.Settle)
		requireHolds(t, start.Kernel(), s)
	})
}

// A step that fails is taken later. A state that waits is not applied by a step.
func TestStepsThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		ok(b.engine.Apply(t.Context(), growing(10*time.Second, 1)))(t)
		r := ok(b.engine.Apply(t.Context(), growing(10*time.Second, 1, 2)))(t)
		time.Sleep(r.Settle)
		b.Fail(memory.CallCommit, 1, errors.New("full"))
		_, err := b.engine.Settle(t.Context())
		require.ErrorContains(t, err, "full")
		require.Equal(t, err, b.status().Unsettled)
		require.False(t, b.status().Settle.After(time.Now()))
		ok(b.engine.Apply(t.Context(), growing(10*time.Second, 1, 2)))(t)
		next := ok(b.engine.Settle(t.Context()))(t)
		require.Positive(t, next)

		b.engine.Set(growing(10*time.Second, 1, 2, 3))
		time.Sleep(next)
		require.Equal(t, time.Second, ok(b.engine.Settle(t.Context()))(t))
		require.Len(t, slots(b.Kernel(), 1), 2)
	})
}

// Run asks again about a step that is not approved after RetryMax, and the step delays no other
// later work.
func TestStepsThatAreNotApproved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		denied, asked := error(nil), 0
		b := &settling{Backend: memory.New(nil)}
		r := runOn(t, &bench{b.Backend, dataplane.New(b, &dataplane.Config{
			Approve: func(context.Context, *dataplane.Preview) error {
				asked++
				return denied
			}})}, dataplane.RunOptions{Resync: never, RetryMax: 10 * time.Second})
		r.set(growing(time.Minute, 1))
		synctest.Wait()
		r.set(growing(time.Minute, 1, 2))
		synctest.Wait()
		denied, asked = errTooMuch, 0
		b.due(5 * time.Second)
		r.at(9 * time.Second)
		require.Equal(t, 1, asked)
		r.at(20 * time.Second)
		require.Equal(t, 2, asked)
		require.Equal(t, 1, b.done)
		denied = nil
		require.NoError(t, r.engine.Finish(t.Context()))
		requireHolds(t, r.Kernel(), growing(time.Minute, 1, 2))
		r.stop()
	})
}
