package ipvs

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/proportion"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Checking, planning and encoding cost as much as the change.
func TestWorkIsProportionalToTheChange(t *testing.T) {
	lawOf(Config{DrainLimit: -1}).Holds(t)
}

// The same holds for each field of the configuration.
func TestWorkIsProportionalInEachConfiguration(t *testing.T) {
	for name, cfg := range proportion.Configs(t, Config{Table: "lb", Scheduler: sm.SourceHash,
		DrainLimit: time.Minute, AffinityMask4: 24, AffinityMask6: 64, Device: "lb0",
		TakeOver: true, CompareShare: 0.5, Timeouts: Timeouts{TCP: time.Hour}, Mark: 0xfff00000,
		Logger: slog.New(slog.DiscardHandler)},
		"NetNS", "StrictARP") { // StrictARP needs a device, and sets sysctls
		t.Run(name, func(t *testing.T) { lawOf(cfg).HoldsAsItIs(t) })
	}
}

// lawOf is the law of a planner with a configuration.
func lawOf(cfg Config) *proportion.Law {
	return &proportion.Law{
		// The destinations of a pool are a map, which its virtual servers share.
		Limits: proportion.Limits{Endpoint: proportion.Cost{Bytes: 700}},
		Exceptions: []proportion.Exception{{Fields: []string{"service.Prefer"},
			Because: "the weights of all endpoints change",
			Limits: proportion.Limits{Pair: proportion.Cost{Elements: 1, Messages: 1, Sent: 120,
				Objects: 8, Bytes: 1200}}}},
		Hold: func(t testing.TB, s sm.State) proportion.Subject {
			base, err := sm.Resolve(nil, s)
			b := newBackend(ok(cfg.withDefaults())(t))
			b.pl.assume(nil)
			if err != nil || b.Check(sm.Diff(nil, base)) != nil {
				return nil
			}
			step := func(c *sm.ChangeSet) backends.Stats {
				p := b.pl.plan(c)
				b.committed(p, 1)
				return p.Stats()
			}

			step(sm.Diff(nil, base))
			return func(to sm.State) func() backends.Stats {
				step(sm.Diff(b.pl.have.table, base))
				next, err := sm.Resolve(base, to)
				if err != nil {
					return nil
				}
				c := sm.Diff(base, next)
				return func() backends.Stats {
					if b.Check(c) != nil {
						return backends.Stats{}
					}
					return step(c)
				}
			}
		},
	}
}
