package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestARestartAdoptsWhatIsThere(t *testing.T) {
	t.Parallel()
	b, s := newBench(nil), services(3)
	b.apply(t, s)
	s = s.WithEndpoints(serviceName(1), endpoints(3, 40, 50)) // slots out of order
	b.apply(t, s)
	before := slots(b.Kernel(), 1)

	b = newBench(b.Kernel())
	r := b.apply(t, s)
	require.True(t, r.Observed)
	require.True(t, r.Changes.Empty(), "%s", r.Changes)
	b.requireCalls(t, 1, 0)

	b = newBench(b.Kernel())
	r = b.apply(t, s.WithEndpoints(serviceName(1), endpoints(3, 40, 50, 60)))
	require.Equal(t, servicemodel.Counts{Added: 1}, r.Counts)
	require.Equal(t, append(before, "10.244.0.60"), slots(b.Kernel(), 1),
		"those that stay keep their slots")
	b.requireCalls(t, 1, 1)
}

func TestARestartTellsHealthChecksAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := services(1).WithService(withHealthCheck(1))
	b := newBench(nil)
	b.apply(t, s)
	r := newBench(b.Kernel()).apply(t, s)
	require.Len(t, r.Changes.Health, 1)
	require.Zero(t, r.Stats.Messages)
	require.Zero(t, r.Counts)
}

func TestPlanTouchesNothingAndSaysWhatApplyDoes(t *testing.T) {
	t.Parallel()
	b, s := newBench(nil), services(2)
	b.apply(t, s)
	b.Kernel().AddDrift("a chain of nobody")
	b.Kernel().Lose(frontendKey(1))
	held := b.Kernel().Table()

	b = newBench(b.Kernel())
	next := s.WithService(service(3))
	p := ok(b.engine.Plan(t.Context(), next))(t)
	require.Equal(t, []string{"a chain of nobody"}, p.Drift)
	again := ok(b.engine.Plan(t.Context(), next))(t)
	require.Equal(t, p.Plan.String(), again.Plan.String())
	require.Same(t, held, b.Kernel().Table())
	b.requireCalls(t, 1, 0)

	r := b.apply(t, next)
	require.False(t, r.Observed, "the plan has read the kernel already")
	require.Equal(t, p.Changes.String(), r.Changes.String())
	require.Equal(t, p.Drift, r.Drift)
	r.Stats.Duration = 0
	require.Equal(t, p.Plan.Stats(), r.Stats)
	require.Contains(t, p.Plan.String(), "repair a chain of nobody\n")
}

func TestAPlanThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(nil)
	b.Fail(memory.CallPlan, 1, errRefused)
	require.ErrorIs(t, errOf(b.engine.Plan(t.Context(), services(1))), errRefused)
}

func TestCleanupLeavesNothingAndApplyBeginsAnew(t *testing.T) {
	t.Parallel()
	b, s := newBench(nil), services(2)
	b.apply(t, s)
	stats := ok(b.engine.Cleanup(t.Context()))(t)
	require.Positive(t, stats.Messages)
	require.Zero(t, b.Kernel().Table().Len())
	stats = ok(b.engine.Cleanup(t.Context()))(t)
	require.Zero(t, stats.Messages)
	r := b.apply(t, s)
	require.True(t, r.Observed)
	require.Equal(t, servicemodel.Counts{Added: 2}, r.Counts)

	failure := errors.New("no memory")
	b.Fail(memory.CallCleanup, 1, failure)
	require.ErrorIs(t, errOf(b.engine.Cleanup(t.Context())), failure)
	r = b.apply(t, s)
	require.True(t, r.Observed)
	require.True(t, r.Changes.Empty())
}

func TestTheLogTellsOfChangesAndOfDrift(t *testing.T) {
	t.Parallel()
	b, buf := newLogging()
	for range 2 {
		b.apply(t, services(1))
	}
	require.Equal(t, 1, bytes.Count(buf.Bytes(), []byte("\n")),
		"the second apply changed nothing: %s", buf)
	require.Contains(t, buf.String(),
		"msg=applied backend=memory revision=1 added=1 changed=0 removed=0")
	b.Kernel().AddDrift("a chain of nobody")
	b.engine.Resync()
	b.apply(t, services(1))
	require.Contains(t, buf.String(),
		"level=WARN msg=repaired backend=memory added=0 changed=0 removed=0 objects=1")
	require.Contains(t, buf.String(), `first="a chain of nobody"`)
	require.Equal(t, 1, bytes.Count(buf.Bytes(), []byte("msg=applied")),
		"a repair is no change: %s", buf)

	require.NotContains(t, buf.String(), "msg=adopted", "the kernel held nothing at the start")

	b.Kernel().Flush()
	b.engine.Resync()
	b.apply(t, services(1))
	require.Contains(t, buf.String(), `first="+ frontend `)
}

// The first apply of a program logs what an earlier program left in the kernel, even if nothing
// changes; later applies do not.
func TestTheLogTellsWhatWasAdopted(t *testing.T) {
	t.Parallel()
	b, buf := newLogging()
	b.apply(t, services(3))
	buf.Reset()
	log := slog.New(slog.NewTextHandler(buf, nil))
	e := dataplane.New(b.Backend, &dataplane.Config{Logger: log})
	for range 2 {
		ok(e.Apply(t.Context(), services(3)))(t)
	}
	require.Equal(t, 1, strings.Count(buf.String(), "\n"), "%s", buf)
	require.Contains(t, buf.String(), "msg=adopted backend=memory services=3 frontends=3 "+
		"endpoints=")
	require.Contains(t, buf.String(), " added=0 changed=0 removed=0 objects=0")
}

// A refused service keeps its old definition, with its present endpoints. A service that was never
// accepted is left out.
func TestRefusedServicesAreKept(t *testing.T) {
	t.Parallel()
	b := benchWith(dataplane.Config{KeepRefused: true})
	b.Refuse(refusePort81)
	apply := func(s, holds servicemodel.State, kept ...bool) *dataplane.Result {
		t.Helper()
		r := ok(b.engine.Apply(t.Context(), s))(t)
		var got []bool
		for _, f := range r.Refused {
			got = append(got, f.Kept)
		}
		require.Equal(t, kept, got)
		requireHolds(t, b.Kernel(), holds)
		return r
	}

	s := services(4)
	apply(s, s)
	changed := s.WithService(at81(3)).WithService(invalid(2)).WithService(at81(5))
	r := apply(changed, s, true, true, false)
	require.True(t, r.Changes.Empty(), r.Changes)
	apply(changed, s, true, true, false)

	p := ok(b.engine.Plan(t.Context(), changed))(t)
	require.Equal(t, r.Refused, p.Refused)

	changed = changed.WithEndpoints(serviceName(3), endpoints(7, 8))
	s = s.WithEndpoints(serviceName(3), endpoints(7, 8))
	apply(changed, s, true, true, false)

	broken := endpoints(9)
	broken[0].Addr = netip.IPv4Unspecified()
	apply(changed.WithEndpoints(serviceName(3), broken), s, true, true, false)
	apply(s.WithEndpoints(serviceName(1), broken), s, true)

	gone := changed.WithoutService(serviceName(3)).WithoutService(serviceName(5))
	apply(gone, s.WithoutService(serviceName(3)), true)
	apply(gone.WithService(at81(3)), s.WithoutService(serviceName(3)), true, false)

	b.Refuse(nil)
	apply(s, s)
}

// Cleanup and ApplyChanges end the wanted state, but the engine still knows the accepted
// definitions.
func TestAcceptedDefinitionsOutliveTheWantedState(t *testing.T) {
	t.Parallel()
	s := services(3)
	b := benchWith(dataplane.Config{KeepRefused: true, Accepted: s})
	e := b.engine
	asks := s.WithService(invalid(2))
	apply := func() {
		t.Helper()
		r := ok(e.Apply(t.Context(), asks))(t)
		require.Len(t, r.Refused, 1)
		require.True(t, r.Refused[0].Kept)
		requireHolds(t, b.Kernel(), s)
	}

	ok(e.Cleanup(t.Context()))(t)
	apply()
	ok(e.ApplyChanges(t.Context(), planned(t, b, services(2))))(t)
	apply()
	ok(e.ForceSwitch(t.Context(), memory.New(nil)))(t)
	require.Len(t, e.Status().Refused, 1)
	require.True(t, e.Status().Refused[0].Kept)
}

// A service whose old definition is no longer accepted is left out.
func TestWhatIsKeptMustBeAccepted(t *testing.T) {
	t.Parallel()
	b := benchWith(dataplane.Config{KeepRefused: true})
	s := services(2).WithService(at81(2))
	b.apply(t, s)
	b.Refuse(refusePort81)
	b.engine.Resync()
	b.Kernel().Flush()
	require.False(t, b.requireRefused(t, s, serviceName(2)).Refused[0].Kept)
}

// A definition that is refused because of its pools does not count as accepted while there are no
// endpoints.
func TestADefinitionWithoutEndpointsIsNotAcceptedYet(t *testing.T) {
	t.Parallel()
	b := benchWith(dataplane.Config{KeepRefused: true})
	b.Refuse(func(c *servicemodel.ChangeSet) error {
		for _, p := range c.Pools {
			if p.New != nil && p.New.Scheduler == servicemodel.LeastConn {
				return &backends.UnsupportedError{Backend: "memory",
					Service: p.New.ID.Service.Name, Field: backends.FieldScheduler,
					Value: string(p.New.Scheduler)}
			}
		}

		return nil
	})

	s, name := services(2), serviceName(1)
	asks := service(1)
	asks.Scheduler = servicemodel.LeastConn
	var r *dataplane.Result
	for _, eps := range [][]servicemodel.Endpoint{endpoints(1), nil, nil, endpoints(2), nil,
		endpoints(3)} {
		s = s.WithEndpoints(name, eps)
		wants := s
		if r != nil {
			wants = s.WithService(asks)
		}
		r = ok(b.engine.Apply(t.Context(), wants))(t)
		requireHolds(t, b.Kernel(), s)
		require.NotEqual(t, servicemodel.LeastConn, r.Accepted.Service(name).Scheduler)
	}

	require.Len(t, r.Refused, 1)
	require.True(t, r.Refused[0].Kept)
}

// Values without a backend return an error, and functions that are not set are not called.
func TestNothingPanicsForWhatItWasNotGiven(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, e := range map[string]*dataplane.Engine{
		"zero": {}, "nil": dataplane.New(nil, nil),
	} {
		_, applyErr := e.Apply(ctx, services(1))
		_, planErr := e.Plan(ctx, services(1))
		_, observeErr := e.Observe(ctx)
		_, settleErr := e.Settle(ctx)
		_, cleanupErr := e.Cleanup(ctx)
		_, switchErr := e.Switch(ctx, costless{})
		_, changesErr := e.ApplyChanges(ctx, &servicemodel.ChangeSet{})
		for _, err := range []error{applyErr, planErr, observeErr, settleErr, cleanupErr, switchErr,
			changesErr, e.Run(ctx, nil)} {
			require.ErrorContains(t, err, "there is no backend", name)
		}

		e.Resync()
		e.Set(services(1))
		require.Equal(t, services(1), e.Status().State)
	}

	for _, p := range []*dataplane.Parts{{}, dataplane.NewParts(nil, nil)} {
		_, err := p.Apply(ctx, "owner", servicemodel.State{})
		require.ErrorContains(t, err, "there is no backend")
		require.ErrorContains(t, errOf(p.Owners(ctx)), "there is no backend")
	}

	b := newBench(nil)
	b.engine.Subscribe(nil)()
	b.engine.Subscribe(nil)
	b.apply(t, services(1))
	require.Error(t, errOf(b.engine.ApplyChanges(ctx, nil)))
	require.Error(t, errOf(dataplane.NewParts(b.Backend, nil).Keep(ctx, nil)))

	opens := backends.Candidate{Name: "a", Open: func() (backends.Backend, error) {
		return costless{}, nil
	}}
	require.Equal(t, []dataplane.Support{{Backend: "a"}, {Backend: "b"}},
		dataplane.Probe(ctx, opens, backends.Candidate{Name: "b"}))
	got, err := dataplane.Choose(ctx, services(1), nil, backends.Candidate{Name: "b"}, opens)
	require.NoError(t, err)
	require.Equal(t, costless{}, got.Backend)
}

// wrapped is a backend around an inner backend.
type wrapped struct{ backends.Backend }

func (w wrapped) Unwrap() backends.Backend { return w.Backend }

// able is a backend with all optional interfaces.
type able struct {
	costless
	called map[string]int
}

func (a able) Lock(context.Context) (func(), error) {
	a.called["lock"]++
	return func() {}, nil
}

func (a able) ObserveParts(ctx context.Context, _ []string, _ *servicemodel.Table) (
	*backends.Observation, error) {
	a.called["observe parts"]++
	return a.Observe(ctx, nil)
}

func (a able) Owners(context.Context) ([]string, error) {
	a.called["owners"]++
	return nil, nil
}

func (a able) Settle(context.Context) (time.Duration, error) {
	a.called["settle"]++
	return 0, nil
}

func (a able) Watch(ctx context.Context, _ func()) error {
	a.called["watch"]++
	<-ctx.Done()
	return nil
}

// A backend with Unwrap has the interfaces of the backend that it wraps.
func TestAWrappedBackendDoesWhatItWraps(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := able{called: map[string]int{}}
		b := wrapped{wrapped{a}}
		e := dataplane.New(b, nil)
		ok(e.Apply(t.Context(), services(1)))(t)
		parts := dataplane.NewParts(b, nil)
		ok(parts.Remove(t.Context(), "owner"))(t)
		ok(parts.Owners(t.Context()))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, e.Run(ctx, nil), context.DeadlineExceeded)
		require.Equal(t, map[string]int{"lock": 3, "settle": 2, "observe parts": 1, "owners": 1,
			"watch": 1}, a.called)
		_, err := dataplane.New(wrapped{costless{}}, nil).Apply(t.Context(), services(1))
		require.NoError(t, err, "nor more than that")
	})
}

// hiding embeds an interface, hidden has a field, and bare embeds a concrete type.
type (
	hiding struct{ backends.Backend }
	hidden struct {
		able
		inner *memory.Backend
	}
	bare  struct{ able }
	below struct{ *hiding }
	// sealed hides all interfaces of the inner backend.
	sealed struct{ backends.Backend }
)

func (sealed) Unwrap() backends.Backend { return nil }

func TestABackendDoesNotHideAnotherInSilence(t *testing.T) {
	t.Parallel()
	a := able{called: map[string]int{}}
	for _, b := range []backends.Backend{hiding{a}, &hiding{a}, below{&hiding{a}},
		hidden{a, memory.New(nil)}, &hidden{a, memory.New(nil)}, wrapped{hiding{a}}} {
		const want = "and needs a method Unwrap() backends.Backend"
		require.ErrorContains(t, errOf(dataplane.New(b, nil).Apply(t.Context(), services(1))), want)
		require.ErrorContains(t, errOf(dataplane.NewParts(b, nil).Owners(t.Context())), want)
		e := dataplane.New(memory.New(nil), nil)
		require.ErrorContains(t, errOf(e.Switch(t.Context(), b)), want)
	}

	for _, b := range []backends.Backend{bare{a}, &bare{a}, memory.New(nil), wrapped{a},
		hidden{able: a}, sealed{hiding{a}}} {
		ok(dataplane.New(b, nil).Observe(t.Context()))(t)
	}
}
