package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// settling is a backend in memory with later work: Settle handles the deadlines that have come.
type settling struct {
	*memory.Backend

	mu        sync.Mutex
	deadlines []time.Time
	calls     int
	done      int
	err       error
	conflicts int // number of calls that still end in a conflict
}

var _ backends.Settler = (*settling)(nil)

func (s *settling) Settle(context.Context) (next time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.err != nil {
		return 0, s.err
	}
	if s.conflicts > 0 {
		s.conflicts--
		return 0, kernelerr.ErrConflict
	}

	for len(s.deadlines) > 0 {
		if wait := time.Until(s.deadlines[0]); wait > 0 {
			return wait, nil
		}
		s.deadlines = s.deadlines[1:]
		s.done++
	}

	return 0, nil
}

func (s *settling) due(after ...time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range after {
		s.deadlines = append(s.deadlines, time.Now().Add(d))
	}
}

func (s *settling) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// requireDone requires this number of handled deadlines, after this number of calls.
func (s *settling) requireDone(t *testing.T, done, calls int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Equal(t, done, s.done, "kept")
	require.Equal(t, calls, s.calls, "calls")
}

// told are flows that record their notifications.
type told struct {
	states  []servicemodel.State
	changes []*servicemodel.ChangeSet
	settled int
	next    time.Duration
	err     error
}

func (f *told) Changed(s servicemodel.State, c *servicemodel.ChangeSet) {
	f.states, f.changes = append(f.states, s), append(f.changes, c)
}

func (f *told) Settle(context.Context) (time.Duration, error) {
	f.settled++
	return f.next, f.err
}

func TestTheNextSettleIsTheSoonest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ backend, flows, want time.Duration }{
		{0, 0, 0}, {5, 0, 5}, {0, 5, 5}, {3, 5, 3}, {5, 3, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &settling{Backend: memory.New(nil)}
			if c.backend > 0 {
				b.due(c.backend)
			}
			e := dataplane.New(b, &dataplane.Config{Flows: &told{next: c.flows}})
			r := ok(e.Apply(t.Context(), services(1)))(t)
			require.Equal(t, c.want, r.Settle)
		})
	}
}

func TestSettleReadsTheKernelFirst(t *testing.T) {
	t.Parallel()
	b := &settling{Backend: memory.New(nil)}
	e := dataplane.New(b, nil)
	ok(e.Settle(t.Context()))(t)
	require.Equal(t, 1, b.Calls(memory.CallObserve))

	b.fail(errRefused)
	_, err := e.Settle(t.Context())
	requirePhase(t, dataplane.PhaseSettle, err)
	require.ErrorIs(t, err, errRefused)
	require.ErrorIs(t, e.Status().Unsettled, errRefused)
	require.Equal(t, 1, b.Calls(memory.CallObserve))
	b.fail(nil)
	ok(e.Apply(t.Context(), services(1)))(t)
	require.Equal(t, 2, b.Calls(memory.CallObserve),
		"after an error the kernel is read again")

	b.Fail(memory.CallObserve, 1, errRefused)
	e.Resync()
	require.ErrorIs(t, errOf(e.Settle(t.Context())), errRefused)
}

// take returns the changes that the flows were notified of since the last call. They all have the
// same new table.
func (f *told) take(t *testing.T) (texts []string) {
	t.Helper()
	for _, c := range f.changes {
		require.True(t, c.New.Equal(f.changes[0].New))
		texts = append(texts, c.String())
	}

	f.changes, f.states = nil, nil
	return texts
}

func TestFlowsAreToldOfEveryStepOfTheKernel(t *testing.T) {
	t.Parallel()
	f := &told{}
	b := benchWith(dataplane.Config{Flows: f})
	apply := func(n int) { b.apply(t, services(n)) }
	changes := func() []string { return f.take(t) }
	apply(2)
	require.Len(t, f.changes, 1)
	require.Equal(t, 2, f.states[0].Len())
	require.Len(t, changes(), 1)

	apply(2)
	require.Equal(t, []string{""}, changes(),
		"they are told of states that change nothing in the kernel, too")

	// A commit fails half way. A reading finds the part that it wrote.
	b.Before(memory.CallCommit, func(ctx context.Context) error {
		b.Before(memory.CallCommit, nil)
		other := newBench(b.Kernel())
		_, err := other.engine.Apply(ctx, services(1))
		return errors.Join(err, errRefused)
	})

	require.ErrorIs(t, errOf(b.engine.Apply(t.Context(), services(0))), errRefused)
	require.Empty(t, f.changes, "nobody knows yet")
	apply(0)
	both := changes()
	require.Len(t, both, 2)
	require.Contains(t, both[0], "- frontend 10.96.0.2:80/tcp", "since they were told last")
	require.Contains(t, both[0], "- frontend 10.96.0.1:80/tcp")
	require.NotContains(t, both[1], "10.96.0.2", "since the kernel was read")
	require.Contains(t, both[1], "- frontend 10.96.0.1:80/tcp")

	// Another program removes everything for a while.
	apply(2)
	changes()
	b.Kernel().Flush()
	apply(2)
	both = changes()
	require.Len(t, both, 2)
	require.Empty(t, both[0], "nothing changed since they were told last")
	require.Contains(t, both[1], "+ frontend 10.96.0.2:80/tcp", "but it was not there in between")
}

// Another program commits during Settle. That is not a failure. Its changes are repaired, although
// the reading of Settle found them.
func TestWhatSettlingReadsIsRepaired(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, b := runSettling(t, dataplane.RunOptions{Resync: never})
		b.due(10100 * time.Millisecond)
		r.set(services(2))
		r.at(10050 * time.Millisecond) // between two checks
		r.Kernel().Flush()
		b.mu.Lock()
		b.conflicts = 1
		b.mu.Unlock()
		r.at(12 * time.Second)
		requireHolds(t, r.Kernel(), services(2))
		totals := r.engine.Status().Totals
		require.Equal(t, 1, totals.Repairs)
		require.Zero(t, totals.Failures)
		require.Equal(t, 1, b.done)
		r.at(time.Hour)
		require.Len(t, r.applies, 2)
	})
}

func TestRunTriesToSettleMoreAndMoreSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, b := runSettling(t, dataplane.RunOptions{Resync: never, RetryMin: time.Second,
			RetryMax: 4 * time.Second})
		b.fail(errRefused)
		r.set(services(1))
		r.at(14 * time.Second)
		requireTimes(t, seconds(0, 1, 3, 7, 11), r.applies)
		for i, err := range r.errs {
			require.ErrorIs(t, err, errRefused)
			require.Equal(t, i == 0, r.results[i] != nil)
		}

		require.ErrorIs(t, r.results[0].Unsettled, errRefused)
		requireHolds(t, b.Kernel(), services(1))
		b.fail(nil)
		r.at(time.Minute)
		require.Len(t, r.applies, 5)
	})
}

func TestFinishDoesWhatIsNotDueYet(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r, b := runSettling(t, dataplane.RunOptions{Resync: never})
		b.due(time.Hour)
		r.set(services(1))
		require.NoError(t, r.engine.Wait(t.Context(), 1))
		require.Zero(t, time.Since(r.start), "it is in the kernel, and not settled")
		b.requireDone(t, 0, 1)
		due := r.engine.Status().Settle
		require.Equal(t, r.start.Add(time.Hour), due)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, r.engine.Finish(ctx), context.DeadlineExceeded)
		require.Equal(t, due, r.engine.Status().Settle, "what is left is not forgotten")
		require.NoError(t, r.engine.Finish(t.Context()))
		require.Equal(t, time.Hour, time.Since(r.start))
		require.Zero(t, r.engine.Status().Settle)
	})
}

// runSettling starts a Run on a backend with later work.
func runSettling(t *testing.T, o dataplane.RunOptions) (*runner, *settling) {
	b := &settling{Backend: memory.New(nil)}
	return runOn(t, &bench{b.Backend, dataplane.New(b, nil)}, o), b
}

// drainingBackend is a backend that emits events for drained endpoints, by their frontends.
type drainingBackend struct {
	*memory.Backend
	frontends []servicemodel.FrontendKey
}

func (b *drainingBackend) Settle(ctx context.Context) (time.Duration, error) {
	for _, k := range b.frontends {
		backends.Notify(ctx, backends.Drained{Frontend: k})
	}
	return 0, nil
}

// After a cleanup, no endpoint is in slow start.
func TestACleanupLeavesNoLaterWork(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(nil)
		b.apply(t, growing(time.Minute, 1))
		ok(b.engine.Apply(t.Context(), growing(time.Minute, 1, 2)))(t)
		require.False(t, b.engine.Status().Settle.IsZero())
		ok(b.engine.Cleanup(t.Context()))(t)
		require.True(t, b.engine.Status().Settle.IsZero())
	})
}

func TestASettlerTellsEvents(t *testing.T) {
	t.Parallel()
	node := frontendKey(1)
	node.Addr, node.Port = netip.MustParseAddr("192.0.2.1"), 30080
	b := &drainingBackend{memory.New(nil), []servicemodel.FrontendKey{frontendKey(1), node,
		frontendKey(9)}}
	e := dataplane.New(b, nil)
	var services []string
	e.Subscribe(func(_ context.Context, ev dataplane.Event) {
		if d, ok := ev.(dataplane.EndpointDrained); ok {
			services = append(services, d.Service.Name.Name)
		}
	})

	svc := service(1)
	svc.Ports[0].NodePort = 30080
	ok(e.Apply(t.Context(), servicemodel.State{}.WithService(svc)))(t)
	require.Equal(t, []string{"svc-1", "svc-1", ""}, services)
	backends.Notify(t.Context(), backends.Cleaned{}) // no observer, and nothing breaks
}

// Stored changes and a switch leave the same later work as an apply.
func TestWhatStoredChangesAndSwitchesLeaveIsDone(t *testing.T) {
	t.Parallel()
	b, flows := &settling{Backend: memory.New(nil)}, &told{next: time.Hour}
	e := dataplane.New(b, &dataplane.Config{Flows: flows})
	p := ok(e.Plan(t.Context(), services(1)))(t)
	b.due(0, time.Minute)
	r := ok(e.ApplyChanges(t.Context(), stored(t, p.Changes)))(t)
	b.requireDone(t, 1, 1)
	require.InDelta(t, time.Minute, r.Settle, float64(10*time.Second))
	b.fail(errRefused)
	p = ok(e.Plan(t.Context(), services(2)))(t)
	r = unsettled(e.ApplyChanges(t.Context(), stored(t, p.Changes)))(t)
	require.ErrorIs(t, r.Unsettled, errRefused)
	require.Equal(t, 1, r.Counts.Added)
	requireHolds(t, b.Kernel(), services(2))

	b.fail(nil)
	ok(e.Apply(t.Context(), services(2)))(t)
	next := &settling{Backend: memory.New(nil)}
	next.due(0, time.Minute)
	flows.settled = 0
	r = ok(e.Switch(t.Context(), next))(t)
	next.requireDone(t, 1, 1)
	require.Equal(t, 1, flows.settled)
	require.InDelta(t, time.Minute, r.Settle, float64(10*time.Second))
	last := &settling{Backend: memory.New(nil), err: errRefused}
	r = unsettled(e.Switch(t.Context(), last))(t)
	require.ErrorIs(t, r.Unsettled, errRefused)
	require.Equal(t, 2, r.Counts.Added)
	requireHolds(t, last.Kernel(), services(2))
	require.Zero(t, next.Kernel().Table().Len())
}
