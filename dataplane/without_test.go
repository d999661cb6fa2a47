package dataplane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

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
		_, switchErr := e.Switch(ctx, costless{}, nil)
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

	opens := dataplane.Candidate{Name: "a", Open: func() (dataplane.Backend, error) {
		return costless{}, nil
	}}
	require.Equal(t, []dataplane.Support{{Backend: "a"}, {Backend: "b"}},
		dataplane.Probe(ctx, opens, dataplane.Candidate{Name: "b"}))
	got, _, err := dataplane.Choose(ctx, services(1), nil, dataplane.Candidate{Name: "b"}, opens)
	require.NoError(t, err)
	require.Equal(t, costless{}, got)
}

// wrapped is a backend around another one.
type wrapped struct{ dataplane.Backend }

func (w wrapped) Unwrap() dataplane.Backend { return w.Backend }

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
	*dataplane.Observation, error) {
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
