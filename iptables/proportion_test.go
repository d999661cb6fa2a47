package iptables

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/proportion"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Checking, planning and encoding cost as much as the change.
func TestWorkIsProportionalToTheChange(t *testing.T) {
	lawOf(&Config{}).Holds(t)
}

// The same holds for each field of the configuration.
func TestWorkIsProportionalInEachConfiguration(t *testing.T) {
	for name, cfg := range proportion.Configs(t, Config{Prefix: "LB"},
		"NetNS", "TakeOver", "Logger") { // these do not concern the planner
		t.Run(name, func(t *testing.T) { lawOf(&cfg).HoldsAsItIs(t) })
	}
}

// lawOf is the law of a planner with a configuration.
func lawOf(cfg *Config) *proportion.Law {
	return &proportion.Law{
		// The rules of a service port are chains. They are built from its old and its new pools,
		// and compared. The trees of frontends, cluster IPs and hairpins are arrays, which are
		// copied.
		Limits: proportion.Limits{Endpoint: proportion.Cost{Bytes: 3000},
			Other: proportion.Cost{Objects: 1, Bytes: 400}},
		Others: []int{270, 810}, // with fewer, all rules are in the first chains
		Exceptions: []proportion.Exception{
			{Change: "weight changed", Because: "the share of an endpoint is its weight among " +
				"those of the rules below it", Limits: proportion.Limits{
				Endpoint: proportion.Cost{Elements: 2, Messages: 2, Sent: 1200}}},
			{Fields: []string{"service.Prefer"}, Because: "the weights of all endpoints change",
				Limits: proportion.Limits{Endpoint: proportion.Cost{Elements: 2, Messages: 2,
					Sent: 1200}}},
			{Fields: []string{"service.Ports[last].Name", "service.Clients"},
				Change:  "service added",
				Because: "a chain with more than 16 frontends is divided",
				Limits: proportion.Limits{Pair: proportion.Cost{Elements: 1, Messages: 1,
					Sent: 100}}},
			{Because: "each endpoint has a list of clients", Limits: proportion.Limits{
				Endpoint: proportion.Cost{Objects: 24, Bytes: 3000}}},
		},
		Hold: func(_ testing.TB, s sm.State) proportion.Subject {
			base, err := sm.Resolve(nil, s)
			if err != nil || Check(sm.Diff(nil, base)) != nil {
				return nil
			}
			b := backend{l: newLayout(cmp.Or(cfg.Prefix, defaultPrefix)), state: &state{},
				found: kernelState{shared: map[chainID][]rule{}}}
			step := func(c *sm.ChangeSet) backends.Stats {
				p := b.plan(c)
				b.committed(p)
				return p.Stats()
			}

			step(sm.Diff(nil, base))
			return func(to sm.State) func() backends.Stats {
				step(sm.Diff(b.written, base))
				next, err := sm.Resolve(base, to)
				if err != nil {
					return nil
				}
				c := sm.Diff(base, next)
				return func() backends.Stats {
					if Check(c) != nil {
						return backends.Stats{}
					}
					return step(c)
				}
			}
		},
	}
}

// A program asks for the choice of each client.
func TestAChoiceCostsTheSameInLargePools(t *testing.T) {
	proportion.Calls(t, proportion.Cost{}, func(n int) func() {
		var pool *sm.Pool
		table := ok(sm.Resolve(nil, proportion.Many(n, func(s *sm.Service) {
			s.Scheduler = sm.SourceHash
		})))(t)
		for p := range table.Pools() {
			if pool == nil || len(p.Slots) > len(pool.Slots) {
				pool = p
			}
		}

		choose := Chooser(pool)
		return func() { choose(netip.MustParseAddrPort("198.51.100.7:4000")) }
	})
}
