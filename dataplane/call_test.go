package dataplane_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// withContext yields the methods of v that take a context, with zero values for the rest.
func withContext(v any) map[string]func(context.Context) error {
	calls, of := map[string]func(context.Context) error{}, reflect.ValueOf(v)
	for i := range of.NumMethod() {
		m := of.Method(i)
		if m.Type().NumIn() == 0 || m.Type().In(0) != reflect.TypeFor[context.Context]() {
			continue
		}
		calls[of.Type().Method(i).Name] = func(ctx context.Context) error {
			args := []reflect.Value{reflect.ValueOf(ctx)}
			n := m.Type().NumIn()
			if m.Type().IsVariadic() {
				n--
			}
			for j := 1; j < n; j++ {
				arg := reflect.Zero(m.Type().In(j))
				switch m.Type().In(j) {
				case reflect.TypeFor[*servicemodel.ChangeSet]():
					arg = reflect.ValueOf(&servicemodel.ChangeSet{})
				case reflect.TypeFor[backends.Backend]():
					arg = reflect.ValueOf(memory.New(nil))
				case reflect.TypeFor[func(string) bool]():
					arg = reflect.ValueOf(func(string) bool { return true })
				}

				args = append(args, arg)
			}

			out := m.Call(args)
			err, _ := out[len(out)-1].Interface().(error)
			return err
		}
	}

	return calls
}

// A call that an observer or Approve makes with its context would wait for itself.
func TestCallsWithinACallFail(t *testing.T) {
	t.Parallel()
	const within = "the context is that of another call of the engine"
	tried := map[string]bool{}
	try := func(ctx context.Context, v any) {
		for name, call := range withContext(v) {
			err := call(ctx)
			require.ErrorContains(t, err, within, name)
			if name == "Apply" || name == "ApplyAll" {
				var phase *dataplane.PhaseError
				require.ErrorAs(t, err, &phase, name)
			}
			tried[name] = true
		}
	}

	m := memory.New(nil)
	var e *dataplane.Engine
	e = dataplane.New(m, &dataplane.Config{Approve: func(ctx context.Context,
		_ *dataplane.Preview) error {
		try(ctx, e)
		return nil
	}})
	ok(e.Apply(t.Context(), services(1)))(t)
	for _, name := range []string{"Apply", "ApplyChanges", "Cleanup", "Finish", "Observe", "Plan",
		"Run", "Settle", "Switch", "Wait"} {
		require.Contains(t, tried, name, "the test calls it")
	}

	e.Subscribe(func(ctx context.Context, _ dataplane.Event) { try(ctx, e) })
	ok(e.Apply(t.Context(), services(2)))(t)
	p := dataplane.NewParts(memory.New(nil), nil)
	other := dataplane.New(memory.New(nil), &dataplane.Config{Approve: func(ctx context.Context,
		_ *dataplane.Preview) error {
		try(ctx, p) // p's call waits for this one
		return nil
	}})
	seen := 0
	p.Subscribe(func(ctx context.Context, _ dataplane.Event) {
		seen++
		try(ctx, p)
		ok(other.Apply(ctx, services(3+seen)))(t) // another engine has its own turn
	})

	ok(p.Apply(t.Context(), "default", services(1)))(t)
	require.NotZero(t, seen)
	require.Subset(t, tried, map[string]bool{"Configure": true, "Keep": true, "Remove": true})
}

// spanned is the context key of a span, which passes a name to everything that the engine calls.
type spanned struct{}

func inSpan(ctx context.Context) string {
	name, _ := ctx.Value(spanned{}).(string)
	return name
}

// spyBackend and spyFlows record the spans in which they are called.
type spyBackend struct {
	*memory.Backend
	spans map[string]string
}

func (b spyBackend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	b.spans["Commit"] = inSpan(ctx)
	return b.Backend.Commit(ctx, c)
}

type spyFlows struct{ spans map[string]string }

func (spyFlows) Changed(servicemodel.State, *servicemodel.ChangeSet) {}

func (f spyFlows) Settle(ctx context.Context) (time.Duration, error) {
	f.spans["Flows"] = inSpan(ctx)
	return 0, nil
}

func TestTheContextOfASpanReachesAll(t *testing.T) {
	t.Parallel()
	spans := map[string]string{}
	e := dataplane.New(spyBackend{memory.New(nil), spans}, &dataplane.Config{
		Flows: spyFlows{spans},
		Approve: func(ctx context.Context, p *dataplane.Preview) error {
			spans["Approve"] = inSpan(ctx)
			require.Equal(t, services(1), p.State)
			require.EqualValues(t, 1, p.Revision)
			return nil
		},
		Span: func(ctx context.Context, name string) (context.Context, func(error)) {
			return context.WithValue(ctx, spanned{}, inSpan(ctx)+"/"+name), func(error) {}
		}})
	e.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if _, ok := ev.(dataplane.Applied); ok {
			spans["Applied"] = inSpan(ctx)
		}
	})

	ok(e.Apply(t.Context(), services(1)))(t)
	require.Equal(t, map[string]string{"Approve": "/apply", "Commit": "/apply", "Flows": "/apply",
		"Applied": "/apply"}, spans)
}

func TestAPlanHasItsState(t *testing.T) {
	t.Parallel()
	e := dataplane.New(memory.New(nil), nil)
	for _, s := range []servicemodel.State{services(2), {}} { // even if there is nothing to do
		p := ok(e.Plan(t.Context(), s))(t)
		require.Equal(t, s, p.State)
		require.Zero(t, p.Revision)
	}
}
