package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/proportion"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// committer is a planner, and the expected contents of its kernel.
type committer struct {
	plan.Planner
	table *servicemodel.Table
	sweep *plan.Sweep
}

// step plans a change set, and records it as committed.
func (h *committer) step(c *servicemodel.ChangeSet) backends.Stats {
	p := h.Plan(c)
	stats := p.Stats()
	for i := range p.Tables {
		h.Tables[i].Committed(p.Tables[i])
	}
	h.sweep = h.sweep.After(p, time.Time{})
	h.Version, h.table, h.Complete = p.Next, c.New, true
	return stats
}

// Checking, planning and encoding cost as much as the change.
func TestWorkIsProportionalToTheChange(t *testing.T) {
	lawOf(t, nil).Holds(t)
}

// The same holds for each field of the configuration.
func TestWorkIsProportionalInEachConfiguration(t *testing.T) {
	for name, cfg := range proportion.Configs(t, Config{Table: "lb", BeforeDispatch: "user-first",
		BeforeMasquerade: "user-last", Priorities: Priorities{DNAT: 1}},
		"NetNS", "TakeOver", "Logger") { // these do not concern the planner
		t.Run(name, func(t *testing.T) { lawOf(t, &cfg).HoldsAsItIs(t) })
	}
}

// lawOf is the law of a planner with a configuration.
func lawOf(t *testing.T, cfg *Config) *proportion.Law {
	t.Helper()
	table, at := ok(cfg.table())(t), ok(cfg.hooks())(t)

	// The elements of an endpoint are consecutive, and their number is its weight. So the elements
	// of later endpoints move.
	moves := proportion.Cost{Elements: 4, Messages: 1, Sent: 200, Objects: 1, Bytes: 1200}
	return &proportion.Law{
		Exceptions: []proportion.Exception{
			{Change: "weight changed", Because: "elements of later endpoints move",
				Limits: proportion.Limits{Pair: moves}},
			{Fields: []string{"service.SlowStart"}, Change: "weight changed",
				Because: "weights are multiplied by 20, so that they grow in steps",
				Limits: proportion.Limits{Pair: proportion.Cost{Elements: 60, Messages: 1,
					Sent: 2600, Bytes: 10000}}},
			{Fields: []string{"service.Prefer"}, Because: "the weights of all endpoints change, " +
				"up to 64 units each", Limits: proportion.Limits{Pair: proportion.Cost{
				Elements: 150, Messages: 1, Sent: 7000, Objects: 2, Bytes: 40000}}},
			{Fields: []string{"service.Scheduler"}, Because: "the table of Maglev changes, and " +
				"is as large as a multiple of the number of endpoints",
				Limits: proportion.Limits{Pair: proportion.Cost{Elements: 50, Messages: 1,
					Sent: 2500, Objects: 10, Bytes: 12000}}},
		},
		Hold: func(_ testing.TB, s servicemodel.State) proportion.Subject {
			base, err := servicemodel.Resolve(nil, s)
			if err != nil || Check(servicemodel.Diff(nil, base)) != nil {
				return nil
			}
			h := committer{Planner: plan.NewPlanner(table, firstEpoch)}
			h.Hooks = at
			h.step(servicemodel.Diff(nil, base))
			return func(to servicemodel.State) func() backends.Stats {
				h.step(servicemodel.Diff(h.table, base))
				next, err := servicemodel.Resolve(base, to)
				if err != nil {
					return nil
				}
				c := servicemodel.Diff(base, next)
				return func() backends.Stats {
					if Check(c) != nil {
						return backends.Stats{}
					}
					return h.step(c)
				}
			}
		},
	}
}

// The cost of each client's choice does not depend on the size of the pool.
func TestAChoiceCostsTheSameInLargePools(t *testing.T) {
	for _, by := range []servicemodel.Scheduler{servicemodel.SourceHash, servicemodel.Maglev} {
		t.Run(string(by), func(t *testing.T) {
			proportion.Calls(t, proportion.Cost{}, func(n int) func() {
				choose := Chooser(largestPool(t, proportion.Many(n, func(s *servicemodel.Service) {
					s.Scheduler = by
				})))
				return func() { choose(netip.MustParseAddrPort("198.51.100.7:4000")) }
			})
		})
	}
}

// largestPool returns the pool with the most endpoints.
func largestPool(t *testing.T, s servicemodel.State) (largest *servicemodel.Pool) {
	for p := range ok(servicemodel.Resolve(nil, s))(t).Pools() {
		if largest == nil || len(p.Slots) > len(largest.Slots) {
			largest = p
		}
	}

	return largest
}
