package dataplane_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/servicemodel"
)

// The cost of an engine's calls is proportional to the change.
func TestWorkIsProportionalToTheChange(t *testing.T) {
	lawOf(nil).Holds(t)
}

// The same holds for each field of the configuration.
func TestWorkIsProportionalInEachConfiguration(t *testing.T) {
	approve := func(context.Context, *dataplane.Preview) error { return nil }
	span := func(ctx context.Context, _ string) (context.Context, func(error)) {
		return ctx, func(error) {}
	}
	for name, cfg := range proportion.Configs(t, dataplane.Config{Strict: true, KeepRefused: true,
		LeaveOutEndpoints: true, Approve: approve, Span: span,
		Logger: slog.New(slog.DiscardHandler)},
		"Accepted", "Node", "Flows") { // a state, and interfaces with their own costs
		t.Run(name, func(t *testing.T) { lawOf(&cfg).HoldsAsItIs(t) })
	}
}

// lawOf is the law of an engine with a configuration.
func lawOf(cfg *dataplane.Config) *proportion.Law {
	return &proportion.Law{
		// A pool is an array, see the test of servicemodel. The engine and the backend copy it.
		Limits: proportion.Limits{Endpoint: proportion.Cost{Bytes: 1300}},
		Exceptions: []proportion.Exception{{Fields: []string{"service.Prefer"},
			Because: "the weights of all endpoints change",
			Limits: proportion.Limits{Endpoint: proportion.Cost{Elements: 1, Messages: 1, Sent: 120,
				Objects: 60, Bytes: 6000}}}},
		Hold: func(t testing.TB, s servicemodel.State) proportion.Subject {
			e := dataplane.New(memory.New(nil), cfg)
			if r, err := e.Apply(t.Context(), s); err != nil || len(r.Refused) > 0 {
				return nil
			}
			return func(to servicemodel.State) func() backends.Stats {
				if _, err := e.Apply(t.Context(), s); err != nil {
					return nil
				}
				return func() backends.Stats {
					r, err := e.Apply(t.Context(), to)
					if err != nil {
						return backends.Stats{}
					}
					return r.Stats
				}
			}
		},
	}
}
